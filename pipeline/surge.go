package pipeline

import (
	"context"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
)

// endSurge removes the surge nodes that the plan has used, now that its last worker is back. The plan
// showed that, so nobody is asked again.
func (w *work) endSurge(ctx context.Context, c Images) error {
	done := w.rep.Plan
	if done.Surge == nil || len(done.Surge.Nodes) == 0 {
		return nil
	}
	w.o.Policy = planning.Policy{SurgeEnds: true, Only: done.Surge.Nodes, Exactly: true}
	w.refusedHint = "every worker is done; " + planning.SurgeStays(done.Surge.Nodes)
	if _, err := w.pass(ctx, c); err != nil {
		return err
	}
	w.rep.Plan = done
	return nil
}

// surgeStays says what becomes of surge nodes that are there when a roll fails.
func (w *work) surgeStays(err error) error {
	if s := w.rep.Plan.Surge; w.began && s != nil && len(s.Nodes) > 0 {
		return fault.WithHint(err, "%s", planning.SurgeStays(s.Nodes))
	}
	return err
}
