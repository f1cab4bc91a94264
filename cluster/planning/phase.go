package planning

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// begun says whether an earlier run has cordoned the node and left it so. It is out
// already: no other goes before it.
func (n *NodePlan) begun() bool {
	return n.Strategy != "" && n.Found.Node != nil && n.Found.Node.Mark != nil
}

// Order gives every node its phase and sorts by it, each phase as the
// configuration lists its nodes but for what spread changes.
func (p *Plan) Order(policy Policy) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		switch {
		case n.Strategy == cluster.Configure:
			n.Phase = Reset
		case n.Resume, n.begun():
			n.Phase = Unfinished
		case n.Role == cluster.ControlPlane:
			n.Phase = ControlPlanes
		default:
			n.Phase = Workers
		}
	}
	if policy.Canary {
		p.pickCanary(policy.CanaryNode)
	}
	order := []Phase{Unfinished, Reset, Canary, ControlPlanes, Workers}
	if policy.WorkersFirst {
		order = []Phase{Unfinished, Reset, Canary, Workers, ControlPlanes}
	}
	slices.SortStableFunc(p.Nodes, func(a, b NodePlan) int { return slices.Index(order, a.Phase) - slices.Index(order, b.Phase) })
	p.spread()
}

// Unfinished is the part of the plan that an earlier run left, for one run, else
// the machines that were reset; nothing else can be relied upon before that.
func (p Plan) Unfinished() (Plan, bool) {
	if p.Run == "" && !slices.ContainsFunc(p.Nodes, func(n NodePlan) bool { return n.Strategy == cluster.Configure }) {
		return p, false
	}
	p.Nodes = slices.DeleteFunc(slices.Clone(p.Nodes), func(n NodePlan) bool { return !n.Resume || n.Run != p.Run })
	p.Arrange()
	p.Trials = nil // those nodes are out already
	return p, true
}

// Work lists the nodes that something will be done to.
func (p Plan) Work() []NodePlan {
	var out []NodePlan
	for _, n := range p.Nodes {
		if n.Strategy != "" {
			out = append(out, n)
		}
	}
	return out
}

// pickCanary sends one node ahead if several are to change, to a build that none
// has booted: the one that is named, else a worker if there is one, since that is the least to lose.
func (p *Plan) pickCanary(named string) {
	booted := map[string]bool{} // builds that a node runs, or is about to
	changing := 0
	for _, n := range p.Nodes {
		switch {
		case n.Paused != "":
		case n.Strategy == "" && n.Found.Machine != nil, n.Resume, n.Strategy != "" && n.Drift.Tidy():
			booted[n.Wanted.Build.ID] = true
		case n.Strategy != "":
			changing++
		}
	}
	pick := -1
	for i, n := range p.Nodes {
		if n.Paused != "" || n.Strategy == "" || n.Phase == Unfinished || booted[n.Wanted.Build.ID] {
			continue
		}
		switch {
		case pick >= 0 && p.Nodes[pick].Node == named:
		case pick < 0, n.Node == named, p.Nodes[pick].Role == cluster.ControlPlane && n.Role == cluster.Worker:
			pick = i
		}
	}
	if pick >= 0 && changing > 1 {
		p.Nodes[pick].Phase = Canary
	}
}

// Phase is a part of a roll that ends before the next begins.
type Phase string

// The phases of a roll. The last two change places where workers go first.
const (
	Unfinished    Phase = "unfinished" // what an earlier run left
	Reset         Phase = "reset"      // machines that somebody has reset
	Canary        Phase = "canary"     // one node, because none runs the new build yet
	ControlPlanes Phase = "control-planes"
	Workers       Phase = "workers"
)

// StepPath is the path of the step that is about a node.
func StepPath(p Phase, node string) string { return "roll/" + string(p) + "/" + node }

// NodeOfStep finds the node that a step is about in its path, and which steps below the
// node's own the path goes through. What is about hosts, scratch VMs or a phase as
// a whole has none: an ID of the last has an underscore, which no name of a node has.
func NodeOfStep(path string) (phase Phase, node string, below []string) {
	parts := strings.Split(path, "/")
	if len(parts) < 3 || parts[0] != "roll" || strings.Contains(parts[2], "_") {
		return "", "", nil
	}
	switch phase := Phase(parts[1]); phase {
	case Unfinished, Reset, Canary, ControlPlanes, Workers:
		return phase, parts[2], parts[3:]
	default:
		return "", "", nil
	}
}

func (p Phase) Title(nodes, limit int) string {
	switch p {
	case Unfinished:
		return "finish what an earlier run left"
	case Reset:
		return "give machines that were reset their configuration back"
	case Canary:
		return "one node first, since none runs the new build yet"
	case ControlPlanes:
		if nodes == 1 {
			return "one control plane"
		}
		return fmt.Sprintf("%d control planes, one at a time", nodes)
	}
	if nodes == 1 {
		return "one worker"
	}
	return fmt.Sprintf("%d workers, at most %d at a time", nodes, limit)
}
