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

func (p Policy) heed(wanted []Wanted) Heed {
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
	return p.selects(node)
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

// check refuses names of nodes that do not exist: a typing error must not look
// like a roll with nothing to do.
func (p Policy) check(wanted []Wanted) error {
	names := p.heed(wanted).Known
	var problems []error
	for _, name := range slices.Concat(p.Only, p.Exclude) {
		if !slices.Contains(names, name) {
			problems = append(problems, fault.WithHint(fault.Configf("no node %q in the configuration", name),
				"the nodes are: %s", strings.Join(names, ", ")))
		}
	}
	return errors.Join(problems...)
}

// tidy says whether the node is right but for what a roll left lying about:
// that is cleared up without taking the node down.
func (d Drift) tidy() bool {
	for _, r := range d.Reasons {
		switch r.Code {
		case "cordoned", "boot-media", "install-image", superseded:
		default:
			if rollable(r.Code) {
				return false
			}
		}
	}
	return d.rollable()
}
