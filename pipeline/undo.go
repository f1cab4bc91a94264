package pipeline

import (
	"context"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/step"
)

// Undo cancels the unfinished replacement of a node, or boots nodes from their previous system disks.
func Undo(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions) (Report, error) {
	w := newWork(p, m, run, o, string(o.Undo.Way))
	w.back = o.Policy.Only
	return w.single(ctx, func(wanted []cluster.Wanted, seen observe.Observation) (planning.Plan, error) {
		plan, way, err := planning.ForUndo(ctx, p.Config.Cluster, wanted, seen, m.Talos, m.Maintenance, o.Policy, w.undone())
		w.command = string(way)
		if way == planning.Previous {
			plan.Gates, plan.Hooks = p.Gates(), p.Hooks()
		}
		return plan, err
	})
}

// undone is what Undo is about, with what only a running command knows.
func (w *work) undone() planning.Undone {
	u := w.o.Undo
	u.Order, u.Say = w.Runs().Order, func(text string) { w.run.Note("undo", text) }
	return u
}
