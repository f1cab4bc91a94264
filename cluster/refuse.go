package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// WithoutCustom is the command that takes parts out of cicustom and leaves its others.
func (vm VM) WithoutCustom(parts ...string) string {
	rest := slices.DeleteFunc(strings.Split(vm.Config["cicustom"], ","), func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		return slices.Contains(parts, name)
	})
	if len(rest) == 0 {
		return fmt.Sprintf("qm set %d --delete cicustom", vm.ID)
	}
	return fmt.Sprintf("qm set %d --cicustom %s", vm.ID, words.Quote(strings.Join(rest, ",")))
}

// Omni are the kernel arguments by which Omni looks after the machine.
func (m Machine) Omni() []string {
	var out []string
	for _, arg := range m.ConfigArgs {
		if ArgName(arg) == "siderolink.api" {
			out = append(out, arg)
		}
	}
	return out
}

func ArgName(arg string) string { name, _, _ := strings.Cut(arg, "="); return name }
