// Package words formats parts of messages: shortened IDs, sizes, plurals, and values quoted for a shell.
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

// First joins the texts, but of more than three only the first three: more do not fit on a line.
func First(texts []string) string {
	if more := len(texts) - 3; more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(texts[:3], "; "), more)
	}
	return strings.Join(texts, "; ")
}

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

// Closest returns the word that was probably meant, or "".
func Closest(got string, words []string) string {
	best, fewest := "", 3
	for _, w := range words {
		// Allow one typo in a short word, two in a longer one.
		if d := edits(strings.ToLower(got), strings.ToLower(w)); d < fewest && d <= max(1, len(w)/4) {
			best, fewest = w, d
		}
	}
	return best
}

// DidYouMean is Closest as the end of a message: `, did you mean "x"?`, or "".
func DidYouMean(got string, words []string) string {
	w := Closest(got, words)
	if w == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", w)
}

// edits counts the letters to insert, delete, change or swap with their neighbour to get
// from a to b. If the lengths differ by more than 2, it returns 3.
func edits(a, b string) int {
	if len(a)-len(b) > 2 || len(b)-len(a) > 2 {
		return 3
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			change := 1
			if a[i] == b[j] {
				change = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+change)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
