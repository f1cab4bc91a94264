package pipeline

import (
	"context"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/step"
)

// Rollback boots nodes from their previous system disks.
func Rollback(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions) (Report, error) {
	w := newWork(p, m, run, o, "rollback")
	w.back = o.Policy.Only
	return w.single(ctx, func(wanted []cluster.Wanted, seen observe.Observation) (planning.Plan, error) {
		plan, err := planning.ForRollback(ctx, p.Config.Cluster, wanted, seen, m.Talos, m.Maintenance, o.Policy)
		plan.Gates, plan.Hooks = p.Gates(), p.Hooks()
		return plan, err
	})
}

// Undo is Recover or Rollback, whichever applies.
func Undo(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions) (Report, error) {
	w := newWork(p, m, run, o, "")
	w.back = o.Policy.Only
	return w.single(ctx, func(wanted []cluster.Wanted, seen observe.Observation) (plan planning.Plan, err error) {
		plan, w.command, err = planning.ForUndo(ctx, p.Config.Cluster, wanted, seen, m.Talos, m.Maintenance, o.Policy, w.undone())
		if w.command == "rollback" {
			plan.Gates, plan.Hooks = p.Gates(), p.Hooks()
		}
		return plan, err
	})
}

// undone is what Undo is about where no node is named.
func (w *work) undone() planning.Undone {
	return planning.Undone{Run: w.o.UndoRun, Order: w.Runs().Order, Say: func(text string) { w.run.Note("undo", text) }}
}

// Recover cancels the unfinished replacement of one node: it puts the old system disk back.
func Recover(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions, node string) (Report, error) {
	w := newWork(p, m, run, o, "recover")
	w.node, w.back = node, []string{node}
	return w.single(ctx, func(wanted []cluster.Wanted, seen observe.Observation) (planning.Plan, error) {
		return planning.ForRecover(p.Config.Cluster, wanted, seen, node)
	})
}
