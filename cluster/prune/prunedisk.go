package prune

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// strange lists the drives of a parking VM that are in no record.
func strange(vm cluster.VM, known map[string]bool) []string {
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
