package cluster

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// flags writes settings of the remembered VM as qm takes them, in order.
func (u *undo) flags(settings map[string]string) string {
	var b strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(settings), compareKeys) {
		value := shellQuote(settings[key])
		if _, remembered := u.mem.VM.Config[key]; remembered && !IsDiskKey(key) {
			value = u.value(key)
		}
		b.WriteString(" --" + key + " " + value)
	}
	return b.String()
}

// value is a setting of the remembered VM: as it is, or where that is too long,
// read from the record.
func (u *undo) value(key string) string {
	quoted := shellQuote(strings.TrimRight(u.mem.VM.Config[key], "\n"))
	if len(quoted) <= u.long {
		return quoted
	}
	u.use("old")
	return `"$(old ` + key + `)"`
}

func plainFlags(options map[string]string) string {
	var b strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(options), compareKeys) {
		b.WriteString(" --" + key + " " + shellQuote(options[key]))
	}
	return b.String()
}

var (
	shellSafe = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)
	// Proxmox before 9 does not encode the percent signs of a description, but
	// decodes whatever looks like it (pve-common, Tools.pm, encode_text).
	percentEncoded = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
)

// shellQuote makes one word of a value for any POSIX shell. Line breaks and what
// looks percent-encoded become escapes of printf: every command stays on one line
// and means what it did, and no line of foreign text begins one of the
// description that it is put into.
func shellQuote(s string) string {
	switch {
	case strings.ContainsAny(s, "\n\r") || percentEncoded.MatchString(s):
		escaped := strings.NewReplacer(`\`, `\\`, "%", `\0045`, "\n", `\n`, "\r", `\r`, "'", `'\''`).Replace(s)
		return `"$(printf %b '` + escaped + `')"`
	case shellSafe.MatchString(s):
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
