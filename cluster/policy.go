package cluster

import (
	"errors"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

func (p Policy) selects(node string) bool {
	return (len(p.Only) == 0 || slices.Contains(p.Only, node)) && !slices.Contains(p.Exclude, node)
}

// check refuses names of nodes that do not exist: a typing error must not look
// like a roll with nothing to do.
func (p Policy) check(wanted []Wanted) error {
	var names []string
	for _, w := range wanted {
		names = append(names, w.Name)
	}
	var problems []error
	for _, name := range slices.Concat(p.Only, p.Exclude) {
		if !slices.Contains(names, name) {
			problems = append(problems, fault.WithHint(fault.Configf("no node %q in the configuration", name),
				"the nodes are: %s", strings.Join(names, ", ")))
		}
	}
	return errors.Join(problems...)
}
