package talosapi

import (
	"cmp"
	"slices"
	"strings"
)

// first is the top entry of sd-boot's menu: the newest version, and among equal versions
// the greatest name. A tilde sorts before everything, so "Talos-v1.13.9.efi" comes before
// "Talos-v1.13.9~1.efi", which was added after it (boot_entry_compare in systemd's
// boot.c).
func (m *machine) first(l loader) (bootEntry, bool) {
	if len(l.Entries) == 0 {
		return bootEntry{}, false
	}
	return slices.MaxFunc(l.Entries, func(a, b bootEntry) int {
		return cmp.Or(compareVersions(m.version(a), m.version(b)), compareVersions(strings.ToLower(a.Name), strings.ToLower(b.Name)))
	}), true
}

// version is the version in an entry's image; "" if it can't be read.
func (m *machine) version(e bootEntry) string {
	img, err := m.fw.boots.read(e.UKI)
	if err != nil {
		return ""
	}
	return img.TalosVersion
}

// compareVersions is strverscmp_improved of systemd: it compares numbers by value, and a
// suffix after a tilde sorts before no suffix.
func compareVersions(a, b string) int {
	for {
		a, b = strings.TrimLeftFunc(a, noVersionChar), strings.TrimLeftFunc(b, noVersionChar)
		for _, sign := range []string{"~", "", "-", "^", "."} {
			if sign == "" {
				if a == "" || b == "" {
					return cmp.Compare(len(a), len(b))
				}
				continue
			}
			hasA, hasB := strings.HasPrefix(a, sign), strings.HasPrefix(b, sign)
			switch {
			case hasA && hasB:
				a, b = a[1:], b[1:]
			case hasA:
				return -1
			case hasB:
				return 1
			}
		}
		part := isLetter
		if a != "" && isDigit(rune(a[0])) || b != "" && isDigit(rune(b[0])) {
			part = isDigit
		}
		partA, partB := leading(a, part), leading(b, part)
		a, b = a[len(partA):], b[len(partB):]
		if r := compareParts(partA, partB, part('0')); r != 0 {
			return r
		}
	}
}

// compareParts compares two numbers of any length, or two words.
func compareParts(a, b string, numbers bool) int {
	if !numbers {
		return strings.Compare(a, b)
	}
	if a == "" || b == "" { // a word sorts before a number
		return cmp.Compare(len(a), len(b))
	}
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func leading(s string, of func(rune) bool) string {
	return s[:len(s)-len(strings.TrimLeftFunc(s, of))]
}

func isDigit(r rune) bool  { return r >= '0' && r <= '9' }
func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

func noVersionChar(r rune) bool {
	return !isDigit(r) && !isLetter(r) && !strings.ContainsRune("~-^.", r)
}
