package surge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// Node is a surge node of recast.yaml, as it was found.
type Node struct {
	Name  string
	There bool // it is a node of the cluster
	Fits  bool // of one that is not there: nothing is known that prevents it from being made
}

// Need is what the number of surge nodes follows from.
type Need struct {
	Wanted  int // roll.surge, of all workers; 0: none
	Workers int // that serve now, without the surge nodes
	Out     int // of them that are taken out at a time; 0: none is taken out
}

// Plan is what becomes of the surge nodes in a roll.
type Plan struct {
	Nodes   []string `json:"nodes"`             // that serve until the last worker is back, and are removed then
	Make    []string `json:"make,omitempty"`    // of these, made before the first worker is drained
	Remove  []string `json:"remove,omitempty"`  // left over by an earlier roll, and removed at the end of this one
	Workers int      `json:"workers,omitempty"` // that serve before the first is drained, without the surge nodes
	Least   int      `json:"least,omitempty"`   // how many serve at any time, with the surge nodes
}

// Choose decides which of the nodes serve: those that are there already, then those that can be
// made, in the order of recast.yaml. Nodes that are there and not needed are removed. The error is
// for a roll.surge that asks for more nodes than there are; nil and no error: there is nothing to do.
func Choose(nodes []Node, need Need) (*Plan, error) {
	p := &Plan{Nodes: []string{}}
	if need.Wanted == 0 || need.Out == 0 {
		for _, n := range nodes {
			if n.There {
				p.Remove = append(p.Remove, n.Name)
			}
		}
		if len(p.Remove) == 0 {
			return nil, nil
		}
		return p, nil
	}
	for _, n := range nodes {
		if n.There {
			p.Nodes = append(p.Nodes, n.Name)
		}
	}
	for _, fits := range []bool{true, false} { // one that does not fit shows in the plan, with the reason
		for _, n := range nodes {
			if !n.There && n.Fits == fits && len(p.Nodes) < need.Wanted {
				p.Nodes, p.Make = append(p.Nodes, n.Name), append(p.Make, n.Name)
			}
		}
	}
	if len(p.Nodes) < need.Wanted {
		return nil, TooFew(need.Wanted, len(p.Nodes))
	}
	p.Workers = need.Workers
	p.Least = min(need.Workers, need.Workers+len(p.Nodes)-need.Out)
	return p, nil
}

// TooFew is the error of a roll.surge that asks for more nodes than there are.
func TooFew(wanted, nodes int) error {
	return fault.WithHint(fault.Configf("roll.surge asks for %d surge nodes, and this roll has %d", wanted, nodes),
		"add a worker with surge: true to nodes in recast.yaml, or lower roll.surge")
}

// Capacity says how many workers serve while others are away; "" if no surge node serves.
func (p *Plan) Capacity() string {
	switch {
	case p == nil || len(p.Nodes) == 0:
		return ""
	case p.Least >= p.Workers && p.Workers == 1:
		return "never fewer than 1 worker serves"
	case p.Least >= p.Workers:
		return fmt.Sprintf("never fewer than %d workers serve", p.Workers)
	}
	return fmt.Sprintf("%d of %d workers serve at the least: roll.maxUnavailable takes out more than there are surge nodes", p.Least, p.Workers)
}

// Lines say in words what becomes of the surge nodes, in the order in which it happens.
func (p *Plan) Lines() []string {
	if p == nil {
		return nil
	}
	var out []string
	if len(p.Make) > 0 {
		out = append(out, fmt.Sprintf("%s: made before the first worker is drained", strings.Join(p.Make, ", ")))
	}
	if len(p.Nodes) > 0 {
		out = append(out, p.Capacity())
		out = append(out, fmt.Sprintf("%s: removed, and the system disk freed, after the last worker is back", strings.Join(p.Nodes, ", ")))
	}
	if len(p.Remove) > 0 {
		out = append(out, fmt.Sprintf("%s: left over by an earlier roll; removed at the end, and the system disk freed", strings.Join(p.Remove, ", ")))
	}
	return out
}

// Has says whether the node serves during the roll.
func (p *Plan) Has(node string) bool {
	if p == nil {
		return false
	}
	return slices.Contains(p.Nodes, node)
}
