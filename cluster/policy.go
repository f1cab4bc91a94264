package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

func (p Policy) Selects(node string) bool {
	return (len(p.Only) == 0 || slices.Contains(p.Only, node)) && !slices.Contains(p.Exclude, node)
}

func (p Policy) Heed(wanted []Wanted) Heed {
	h := Heed{Ignore: p.IgnoreNodes}
	for _, w := range wanted {
		h.Known = append(h.Known, w.Name)
	}
	return h
}

// Selector chooses nodes by the labels of their Node objects.
type Selector struct {
	Text    string // as it was asked for; "": every node
	Matches func(labels map[string]string) bool
}

// picks says whether the node is one of those asked for. One whose labels are
// not known is none that was asked for by labels.
func (p Policy) picks(node string, f Found) bool {
	if p.Labels.Text != "" && (f.Node == nil || !p.Labels.Matches(f.Node.Metadata.Labels)) {
		return false
	}
	return p.Selects(node)
}

// checkLabels refuses a selector that chooses nothing, as check does names.
func (p Policy) checkLabels(wanted []Wanted, o Observation) error {
	if p.Labels.Text == "" {
		return nil
	}
	for i, w := range wanted {
		if p.picks(w.Name, o.Found[i]) {
			return nil
		}
	}
	return fault.WithHint(fault.Configf("no node of the configuration that was asked for has labels %q", p.Labels.Text),
		"kubectl get nodes -l '%s' shows which nodes do", p.Labels.Text)
}

// maxUnavailable is how many workers may be out at a time.
func (p Policy) maxUnavailable(o Observation) int {
	workers := 0
	for _, f := range o.Found {
		if f.Machine != nil && !f.Machine.ControlPlane {
			workers++
		}
	}
	if p.MaxUnavailable == nil {
		return 1
	}
	return max(1, p.MaxUnavailable(workers))
}

// Check refuses names of nodes that do not exist: a typing error must not look
// like a roll with nothing to do.
func (p Policy) Check(wanted []Wanted) error {
	names := p.Heed(wanted).Known
	var problems []error
	for _, name := range slices.Concat(p.Only, p.Exclude) {
		if !slices.Contains(names, name) {
			problems = append(problems, fault.WithHint(fault.Configf("no node %q in the configuration", name),
				"the nodes are: %s", strings.Join(names, ", ")))
		}
	}
	return errors.Join(problems...)
}

// Tidy says whether the node is right but for what a roll left lying about:
// that is cleared up without taking the node down.
func (d Drift) Tidy() bool {
	for _, r := range d.Reasons {
		switch r.Code {
		case "cordoned", "boot-media", "install-image", superseded:
		default:
			if rollable(r.Code) {
				return false
			}
		}
	}
	return d.Rollable()
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

// takenOut says whether the node is in now and this plan takes it out.
func (n NodePlan) takenOut() bool {
	return !n.Resume && n.Strategy != "" && n.Strategy != Configure && n.Strategy != PutBack && !(n.Strategy == InPlace && n.Drift.Tidy())
}

// AwaitOthers refuses the nodes that could not go because others are not Ready,
// but for those that the plan itself brings back before.
func (p *Plan) AwaitOthers(o Observation) {
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
		if down := p.Heed.Down(o.Nodes, n.Role, func(name string) bool { return slices.Contains(before, name) }); len(down) > 0 {
			n.Refused = append(n.Refused, OthersDown+strings.Join(down, ", ")+": "+BringBack)
		}
	}
	for _, k := range o.Nodes {
		if why := p.Heed.Excuse(k); !k.Ready && why != "" && !slices.Contains(before, k.Name) {
			left = append(left, fmt.Sprintf("%s (%s)", k.Name, why))
		}
	}
	if len(before) > 0 && len(left) > 0 {
		p.Warn = append(p.Warn, "not Ready, which no worker waits for: "+strings.Join(left, ", "))
	}
}
