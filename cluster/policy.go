package cluster

import (
	"slices"
)

// Selector chooses nodes by the labels of their Node objects.
type Selector struct {
	Text    string // as it was asked for; "": every node
	Matches func(labels map[string]string) bool
}

// Heed says which Nodes that are not Ready keep others from being taken out.
type Heed struct {
	Known  []string // the nodes of recast.yaml; empty: every Node counts
	Ignore []string // roll.ignoreNodes
}

// Excuse is why a Node that is not Ready does not count; "" where it does. A
// person who cordons a node has taken it out, and none that recast has out is excused.
func (h Heed) Excuse(k KubeNode) string {
	switch {
	case slices.Contains(h.Ignore, k.Name):
		return "in roll.ignoreNodes"
	case len(h.Known) > 0 && !slices.Contains(h.Known, k.Name):
		return "not in recast.yaml"
	case k.Unschedulable && k.Mark == nil:
		return "cordoned"
	}
	return ""
}

// Down lists the Nodes that keep a node of that role from being taken out. While
// a control plane is not Ready no other one goes, whatever excuse it has.
func (h Heed) Down(nodes []KubeNode, role string, not func(name string) bool) []string {
	var down []string
	for _, k := range nodes {
		counts := h.Excuse(k) == "" || role == ControlPlane && k.ControlPlane
		if !k.Ready && counts && !not(k.Name) {
			down = append(down, k.Name)
		}
	}
	slices.Sort(down)
	return down
}

const (
	OthersDown = "other nodes are not Ready: "
	BringBack  = "bring them back first; one more out would be one too many. A worker that is to stay away: kubectl cordon it, or name it in roll.ignoreNodes"
)
