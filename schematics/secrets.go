package schematics

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Secrets names, in words, what of the schematic is secret: a machine configuration,
// or a way to get one. Nothing of it is quoted.
func (s Schematic) Secrets() []string {
	var out []string
	if s.EmbedsConfig() {
		out = append(out, "the machine configuration that it embeds")
	}
	for _, arg := range s.doc.Customization.ExtraKernelArgs {
		for arg := range strings.FieldsSeq(arg) { // one entry may be several
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
	soundsLike = regexp.MustCompile(`(?i)(secret|passw(or)?d|passphrase|token|(api|access|private)[_-]?key)=[^&]`)
	privateKey = regexp.MustCompile(`(?i)private_?key"?\s*:\s*"?[^"\s]`)
	// filledIn is a value that Talos puts in when it asks for its configuration (download/url.go).
	filledIn = regexp.MustCompile(`^(\$\{\w+\})?$`)
)

func secretArg(name, arg, value string) bool {
	switch {
	case name == "talos.config.inline", name == "talos.config.early": // the configuration itself
		return true
	case userInURL.MatchString(value), soundsLike.MatchString(arg):
		return true
	case name != "talos.config":
		return false
	}
	u, err := url.Parse(value)
	if err != nil {
		return true
	}
	for _, values := range u.Query() { // of a signed URL, say
		if slices.ContainsFunc(values, func(v string) bool { return !filledIn.MatchString(v) }) {
			return true
		}
	}
	return false
}

// HoldsSecrets says whether one of its schematics does. One that can't be read may.
func (l Lock) HoldsSecrets() bool {
	for _, e := range l.Schematics {
		if s, err := Parse(e.File, []byte(e.Schematic)); err != nil || len(s.Secrets()) > 0 {
			return true
		}
	}
	return false
}
