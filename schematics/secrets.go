package schematics

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/redact"
)

// Secrets describes what in the schematic is secret: a machine configuration, or a
// way to get one. It quotes nothing.
func (s Schematic) Secrets() []string {
	var out []string
	if s.EmbedsConfig() {
		out = append(out, "the machine configuration that it embeds")
	}
	for _, arg := range s.doc.Customization.ExtraKernelArgs {
		for arg := range strings.FieldsSeq(arg) { // one entry may hold several
			if _, name := redact.KernelArg(arg); name != "" {
				out = append(out, "the kernel argument "+name)
			}
		}
	}
	for _, m := range s.doc.Customization.Meta {
		if privateKey.MatchString(m.Value) {
			out = append(out, fmt.Sprintf("the META value %#x", m.Key))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var privateKey = regexp.MustCompile(`(?i)private_?key"?\s*:\s*"?[^"\s]`)

// HoldsSecrets reports whether one of the schematics has secrets. An unreadable one may.
func (l Lock) HoldsSecrets() bool {
	for _, e := range l.Schematics {
		if s, err := Parse(e.File, []byte(e.Schematic)); err != nil || len(s.Secrets()) > 0 {
			return true
		}
	}
	return false
}
