package prune

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// unrecorded lists the drives of a parking VM that no record mentions.
func unrecorded(vm cluster.VM, known map[string]bool) []string {
	var out []string
	for key, value := range vm.Config {
		if cluster.IsDiskKey(key) && !known[key] {
			volid, _, _ := strings.Cut(value, ",")
			out = append(out, fmt.Sprintf("%s (%s)", key, volid))
		}
	}
	slices.Sort(out)
	return out
}
