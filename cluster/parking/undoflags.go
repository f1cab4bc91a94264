package parking

import (
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/words"
)

// flags renders settings of the remembered VM as flags of qm, in order.
func (u *undo) flags(settings map[string]string) string {
	var b strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(settings), cluster.CompareKeys) {
		value := words.Quote(settings[key])
		if _, remembered := u.mem.VM.Config[key]; remembered && !cluster.IsDiskKey(key) {
			value = u.value(key)
		}
		b.WriteString(" --" + key + " " + value)
	}
	return b.String()
}

// value renders a setting of the remembered VM: literally, or if that is too long, as a command
// that reads it from the record.
func (u *undo) value(key string) string {
	quoted := words.Quote(strings.TrimRight(u.mem.VM.Config[key], "\n"))
	if len(quoted) <= u.long {
		return quoted
	}
	u.use("old")
	return `"$(old ` + key + `)"`
}

func plainFlags(options map[string]string) string {
	var b strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(options), cluster.CompareKeys) {
		b.WriteString(" --" + key + " " + words.Quote(options[key]))
	}
	return b.String()
}
