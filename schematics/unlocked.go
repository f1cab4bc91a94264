package schematics

import (
	"fmt"
	"path"
	"strings"
)

// Unlocked reads the schematic that a running image states, without recast's
// additions: the file that would produce the image again.
func Unlocked(name string, data []byte) (Schematic, error) {
	s, err := Parse(name, data)
	if err != nil {
		return Schematic{}, err
	}
	return Parse(name, []byte(s.withoutLock()))
}

// EmbedsConfig reports whether its images embed a machine configuration.
func (s Schematic) EmbedsConfig() bool {
	return s.doc.Customization.EmbeddedMachineConfiguration != ""
}

// Guess is the schematic of an image that states none, from the extensions that its
// node lists. unknown are those that match no official extension.
func Guess(name string, listed []string, official []OfficialExtension) (s Schematic, unknown []string, err error) {
	var names []string
	for _, x := range listed {
		found := ""
		for _, o := range official {
			if path.Base(o.Name) == x {
				found = o.Name
			}
		}
		if found == "" {
			unknown = append(unknown, x)
			continue
		}
		names = append(names, found)
	}
	text := "customization: {}\n"
	if len(names) > 0 {
		text = fmt.Sprintf("customization:\n  systemExtensions:\n    officialExtensions:\n      - %s\n", strings.Join(names, "\n      - "))
	}
	s, err = Parse(name, []byte(text))
	return s, unknown, err
}
