// Package words formats parts of messages: shortened IDs, sizes, plurals, and values
// quoted for a shell.
package words

import (
	"fmt"
	"regexp"
	"strings"
)

// Short cuts a digest or an ID to its first twelve characters, for people to compare.
func Short(id string) string {
	for _, p := range []string{"sha256:", "sha256-"} {
		if hex, ok := strings.CutPrefix(id, p); ok {
			return p + hex[:min(12, len(hex))]
		}
	}
	return id[:min(12, len(id))]
}

// Size is a number of bytes in MiB, or in KiB if it is less than one.
func Size(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%d KiB", (bytes+1023)/1024)
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}

// Plural returns noun, with an s unless n is 1.
func Plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// Counted is a number of things: "1 node", "2 nodes".
func Counted(n int, noun string) string { return fmt.Sprintf("%d %s", n, Plural(n, noun)) }

// OrNone is s, or "none" if s is empty.
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

// Quote quotes a value as one word for any POSIX shell. Line breaks and sequences that
// look percent-encoded become escapes of printf: so a command stays on one line with its
// meaning, and foreign text can't start a line of the description that contains it.
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
