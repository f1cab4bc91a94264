package cluster

import (
	"context"
	"maps"
	"path"
	"slices"

	"github.com/recast-sh/recast/internal/step"
)

// outlineOf lists the steps by which a roll of the plan would go about a node: those
// of the tree that it runs, with no world to ask what is done already.
func outlineOf(ctx context.Context, p Plan, n NodePlan, o Observation, t Timing) []StepOutline {
	if n.Strategy == "" || len(n.Refused) > 0 {
		return nil
	}
	roll := &nodeRoll{
		Roller: &Roller{Cluster: p.Cluster, Timing: t, Say: func(string, string) {}},
		plan:   n, want: n.wanted, gates: p.Gates, hooks: p.Hooks, path: StepPath(n.Phase, n.Node),
	}
	roll.plan.controlPlanes, roll.plan.heed = p.controlPlanes, p.heed
	drawn, err := exchangeOf(n)
	if err != nil {
		return nil // told where the record is opened, before anything is touched
	}
	roll.drawn = drawn
	var out []StepOutline
	walk(ctx, slices.Concat(roll.pullSteps(), roll.branches()), "", func(at string, s step.Step) bool {
		if s.ID == "fallback" {
			if n.previous != nil {
				out = append(out, StepOutline{Path: at, Title: "only where it does not come back: " + s.Title, Risk: s.Risk.String()})
			}
			return false
		}
		if s.Steps == nil {
			line := StepOutline{Path: at, Title: s.Title, Risk: s.Risk.String(), TimeoutSeconds: int(timeoutOf(t, s.ID).Seconds())}
			line.Seconds, line.SecondsFrom = tookAt(n, o.Took, at)
			out = append(out, line)
		}
		return true
	})
	return out
}

// walk goes through a tree of steps in its order, without asking whether there is
// work; see says whether to go below a branch.
func walk(ctx context.Context, steps []step.Step, below string, see func(at string, s step.Step) bool) {
	for _, s := range steps {
		at := path.Join(below, s.ID)
		if !see(at, s) || s.Steps == nil {
			continue
		}
		// What lists children asks the world only for the exchange, which is drawn.
		children, err := s.Steps(ctx)
		if err == nil {
			walk(ctx, children, at, see)
		}
	}
}

// exchangeOf is that of the node's VM as it would be remembered now; nil where its
// strategy has none.
func exchangeOf(n NodePlan) (*Replace, error) {
	switch {
	case n.Resume && n.found.Parking != nil && n.found.Parking.Record.Open:
		park := *n.found.Parking
		mem, err := park.Record.memory(park.VM)
		return replaceOf(nil, mem, park.Record, park.VM.ID), err
	case n.found.VM == nil || n.System == nil || n.Strategy != Recreate && n.Strategy != Reimage:
		return nil, nil
	}
	vm := *n.found.VM
	vm.Config = maps.Clone(vm.Config)
	vm.dropCSI()
	mem := memory{VM: vm, SystemKey: n.System.Key}
	if n.Strategy == Recreate {
		mem.Firewall = n.found.Ties.Firewall.Sum()
	}
	rec, err := Record{Node: n.Node, Strategy: n.Strategy}.open(mem, n.found.Parking)
	if err != nil {
		return nil, err
	}
	var parking VMID
	if n.found.Parking != nil {
		parking = n.found.Parking.VM.ID
	}
	return replaceOf(nil, mem, rec, parking), nil
}

// tookAt is how long a step took in the latest rolls of the node by the same
// strategy, in the median, else in those of others of its role.
func tookAt(n NodePlan, past []Took, at string) (seconds int, from string) {
	for _, of := range n.peers() {
		var each []int
		for _, t := range past {
			if t.Strategy == n.Strategy && of.like(t) && len(each) < lately {
				each = append(each, t.Steps[at])
			}
		}
		if count := len(each); count > 0 {
			return median(each), earlier(count, of.who)
		}
	}
	return 0, ""
}
