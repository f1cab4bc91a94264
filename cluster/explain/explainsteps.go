package explain

import (
	"context"
	"path"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/internal/step"
)

// outlineOf lists the steps of the node in a roll of the plan: those of the tree that it runs,
// without asking what is already done.
func outlineOf(ctx context.Context, p planning.Plan, n planning.NodePlan, o observe.Observation, t cluster.Timing) []StepOutline {
	if n.Strategy == "" || len(n.Refused) > 0 {
		return nil
	}
	steps, err := roll.DrawnSteps(p, n, t)
	if err != nil {
		return nil // reported when the record is opened, before anything is changed
	}
	var out []StepOutline
	walk(ctx, steps, "", func(at string, s step.Step) bool {
		if s.ID == "fallback" {
			if n.Previous != nil {
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

// walk visits a tree of steps in order, without asking whether there is work; see says whether
// to visit the children of a branch.
func walk(ctx context.Context, steps []step.Step, below string, see func(at string, s step.Step) bool) {
	for _, s := range steps {
		at := path.Join(below, s.ID)
		if !see(at, s) || s.Steps == nil {
			continue
		}
		// Only the exchange asks the world for its children, and here it is drawn without asking.
		children, err := s.Steps(ctx)
		if err == nil {
			walk(ctx, children, at, see)
		}
	}
}

// tookAt is the median time of a step in the latest rolls of the node by the same strategy, or
// else in those of others of its role.
func tookAt(n planning.NodePlan, past []cluster.Took, at string) (seconds int, from string) {
	for _, of := range n.Peers() {
		var each []int
		for _, t := range past {
			if t.Strategy == n.Strategy && of.Like(t) && len(each) < planning.Lately {
				each = append(each, t.Steps[at])
			}
		}
		if count := len(each); count > 0 {
			return planning.Median(each), planning.EarlierRolls(count, of.Who)
		}
	}
	return 0, ""
}
