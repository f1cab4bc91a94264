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

// outlineOf lists the steps by which a roll of the plan would go about a node: those
// of the tree that it runs, with no world to ask what is done already.
func outlineOf(ctx context.Context, p planning.Plan, n planning.NodePlan, o observe.Observation, t cluster.Timing) []StepOutline {
	if n.Strategy == "" || len(n.Refused) > 0 {
		return nil
	}
	steps, err := roll.DrawnSteps(p, n, t)
	if err != nil {
		return nil // told where the record is opened, before anything is touched
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

// tookAt is how long a step took in the latest rolls of the node by the same
// strategy, in the median, else in those of others of its role.
func tookAt(n planning.NodePlan, past []cluster.Took, at string) (seconds int, from string) {
	for _, of := range n.Peers() {
		var each []int
		for _, t := range past {
			if t.Strategy == n.Strategy && of.Like(t) && len(each) < cluster.Lately {
				each = append(each, t.Steps[at])
			}
		}
		if count := len(each); count > 0 {
			return cluster.Median(each), cluster.EarlierRolls(count, of.Who)
		}
	}
	return 0, ""
}
