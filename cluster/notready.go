package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

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

// down lists the Nodes that keep a node of that role from being taken out. While
// a control plane is not Ready no other one goes, whatever excuse it has.
func (h Heed) down(nodes []KubeNode, role string, not func(name string) bool) []string {
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
	othersDown = "other nodes are not Ready: "
	bringBack  = "bring them back first; one more out would be one too many. A worker that is to stay away: kubectl cordon it, or name it in roll.ignoreNodes"
)

// takenOut says whether the node is in now and this plan takes it out.
func (n NodePlan) takenOut() bool {
	return !n.Resume && n.Strategy != "" && n.Strategy != Configure && n.Strategy != PutBack && !(n.Strategy == InPlace && n.Drift.tidy())
}

// awaitOthers refuses the nodes that could not go because others are not Ready,
// but for those that the plan itself brings back before.
func (p *Plan) awaitOthers(o Observation) {
	var before, left []string
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy == "" {
			continue
		}
		before = append(before, n.Node)
		if !n.takenOut() {
			continue
		}
		if down := p.heed.down(o.Nodes, n.Role, func(name string) bool { return slices.Contains(before, name) }); len(down) > 0 {
			n.Refused = append(n.Refused, othersDown+strings.Join(down, ", ")+": "+bringBack)
		}
	}
	for _, k := range o.Nodes {
		if why := p.heed.Excuse(k); !k.Ready && why != "" && !slices.Contains(before, k.Name) {
			left = append(left, fmt.Sprintf("%s (%s)", k.Name, why))
		}
	}
	if len(before) > 0 && len(left) > 0 {
		p.Warn = append(p.Warn, "not Ready, which no worker waits for: "+strings.Join(left, ", "))
	}
}

// requireOthersReady refuses to take a node out while another one is down that
// this roll has not taken out itself.
func (n *nodeRoll) requireOthersReady(ctx context.Context) error {
	nodes, err := n.Kube.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("list Kubernetes nodes: %w", err)
	}
	down := n.plan.heed.down(nodes, n.plan.Role, func(name string) bool { return name == n.plan.Node || n.out.has(name) })
	if len(down) > 0 {
		return fault.WithHint(fault.GateClosed.Refusedf("%s%s", othersDown, strings.Join(down, ", ")), bringBack)
	}
	return nil
}
