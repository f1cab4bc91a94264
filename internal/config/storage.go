package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// Storage says at which storage systems of the cluster a roll looks.
type Storage struct {
	Longhorn string `yaml:"longhorn" jsonschema:"enum=on,enum=off"`
	Ceph     string `yaml:"ceph" jsonschema:"enum=on,enum=off"`
	LINSTOR  string `yaml:"linstor" jsonschema:"enum=on,enum=off"`
	Mayastor string `yaml:"mayastor" jsonschema:"enum=on,enum=off"`
}

// switches are the words for one system, or for all.
var switches = []string{"on", "off"}

// UnmarshalText reads the short form, which is for all systems.
func (s *Storage) UnmarshalText(text []byte) error {
	word := string(text)
	if !slices.Contains(switches, word) {
		return fmt.Errorf("%s is not one of %s, or a section such as {linstor: off}%s", quote(word), strings.Join(switches, ", "), words.DidYouMean(word, switches))
	}
	*s = Storage{word, word, word, word}
	return nil
}

// MarshalYAML writes the short form where it says the same.
func (s Storage) MarshalYAML() (any, error) {
	if s == (Storage{s.Longhorn, s.Longhorn, s.Longhorn, s.Longhorn}) {
		return s.Longhorn, nil
	}
	type section Storage
	return section(s), nil
}

// Off lists the systems at which a roll does not look, by their keys.
func (s Storage) Off() []string {
	var off []string
	for _, system := range []struct{ key, word string }{{"longhorn", s.Longhorn}, {"ceph", s.Ceph}, {"linstor", s.LINSTOR}, {"mayastor", s.Mayastor}} {
		if system.word == "off" {
			off = append(off, system.key)
		}
	}
	return off
}
