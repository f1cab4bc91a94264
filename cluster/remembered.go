package cluster

import (
	"strings"
)

// MadeFrom returns the ID of the build that a run of recast made the VM from,
// "" if none did.
func (vm VM) MadeFrom() string {
	for line := range strings.Lines(vm.Config["description"]) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), RunMark); ok {
			_, build, _ := strings.Cut(rest, " build=")
			build, _, _ = strings.Cut(build, " ")
			return build
		}
	}
	return ""
}
