package schematics

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
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
			arg = strings.Trim(arg, `"`)
			name, value, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
			if value != "" && secretArg(name, arg, value) {
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

var (
	userInURL  = regexp.MustCompile(`://[^/?#]*@`)
	secretName = regexp.MustCompile(`(?i)(secret|passw(or)?d|passphrase|token|(api|access|private)[_-]?key)=[^&]`)
	privateKey = regexp.MustCompile(`(?i)private_?key"?\s*:\s*"?[^"\s]`)
	// filledIn matches a value that Talos fills in when it requests its configuration (download/url.go).
	filledIn = regexp.MustCompile(`^(\$\{\w+\})?$`)
)

func secretArg(name, arg, value string) bool {
	switch {
	case name == "talos.config.inline", name == "talos.config.early": // the configuration itself
		return true
	case userInURL.MatchString(value), secretName.MatchString(arg):
		return true
	case name != "talos.config":
		return false
	}
	u, err := url.Parse(value)
	if err != nil {
		return true
	}
	for _, values := range u.Query() { // such as those of a signed URL
		if slices.ContainsFunc(values, func(v string) bool { return !filledIn.MatchString(v) }) {
			return true
		}
	}
	return false
}

// HoldsSecrets reports whether one of the schematics has secrets. An unreadable one may.
func (l Lock) HoldsSecrets() bool {
	for _, e := range l.Schematics {
		if s, err := Parse(e.File, []byte(e.Schematic)); err != nil || len(s.Secrets()) > 0 {
			return true
		}
	}
	return false
}
