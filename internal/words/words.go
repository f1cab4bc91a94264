// Package words has the small words that messages are made of: IDs cut to what
// people compare by eye, plurals, and values quoted for a shell.
package words

import (
	"regexp"
	"strings"
)

// Short cuts a digest or an ID to the twelve characters that people compare by eye.
func Short(id string) string {
	for _, p := range []string{"sha256:", "sha256-"} {
		if hex, ok := strings.CutPrefix(id, p); ok {
			return p + hex[:min(12, len(hex))]
		}
	}
	return id[:min(12, len(id))]
}

// Plural is the noun for n of it.
func Plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// OrNone is s, or "none" where it is empty.
func OrNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

var (
	shellSafe = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)
	// Proxmox before 9 does not encode the percent signs of a description, but
	// decodes whatever looks like it (pve-common, Tools.pm, encode_text).
	percentEncoded = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
)

// Quote makes one word of a value for any POSIX shell. Line breaks and what
// looks percent-encoded become escapes of printf: every command stays on one line
// and means what it did, and no line of foreign text begins one of the
// description that it is put into.
func Quote(s string) string {
	switch {
	case strings.ContainsAny(s, "\n\r") || percentEncoded.MatchString(s):
		escaped := strings.NewReplacer(`\`, `\\`, "%", `\0045`, "\n", `\n`, "\r", `\r`, "'", `'\''`).Replace(s)
		return `"$(printf %b '` + escaped + `')"`
	case shellSafe.MatchString(s):
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
