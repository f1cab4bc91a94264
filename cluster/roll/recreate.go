package roll

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/restore"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// work returns what is done to the node by its strategy, in order.
func (n *node) work() []step.Step {
	last := step.Step{ID: "gate", Code: fault.GateClosed, Title: "check that it is safe to take " + n.Plan.Node + " out", Do: n.gate.Check}
	if n.Plan.Strategy == cluster.Create {
		last.Title = "check that it is safe to make " + n.Plan.Node
	}
	first := append([]step.Step{last}, n.serving.Steps()...)
	switch n.Plan.Strategy {
	case cluster.InPlace:
		return slices.Concat(first, (&inPlace{node: n}).steps(), n.reshapeAfter())
	case cluster.PutBack:
		return []step.Step{last, n.putBack()}
	case cluster.ApplyConfig:
		return slices.Concat(first, n.stillDrained(newApplyConfig(n).steps()), n.reshapeAfter())
	case cluster.InstallReset:
		return append(first, n.resetSteps()...)
	case cluster.Create:
		steps := append(first, n.createSteps()...)
		if n.Plan.Rebuild != "" && !n.Plan.Bootstraps {
			steps = slices.Insert(steps, 0, restore.ForgetGone(n.Node))
		}
		if n.Want.Shape.HA != nil {
			steps = append(steps, n.serving.Reshape())
		}
		return steps
	case cluster.Remove:
		if n.Plan.Found.Absent != nil {
			return []step.Step{rolling.Freeing{Node: n.Node}.Removed()}
		}
		return append([]step.Step{last, n.down()}, n.removal()...)
	case cluster.Reshape:
		if !n.Plan.Resume && !n.stopsForShape() {
			return first
		}
	}
	return append(first, n.recreate()...)
}

// recreate moves a node to another system disk, in order: in a new VM (recreate), or in the VM that
// it has (reimage and rollback); or it gives that VM another shape (reshape). Every Skip asks the
// world whether its step is done, so an interrupted roll resumes by running the same list again. What must hold before any of it is in
// package gate (Gate.look); what must hold before the VM is deleted, in
// exchange.Replace.deleteSame.
func (n *node) recreate() []step.Step {
	return []step.Step{n.down(), n.up(n.record.source().NewSystem())}
}

// down takes a node down, and its disks to where they are safe.
func (n *node) down() step.Step {
	down := n.record.source().TakeDown(
		step.Step{ID: "remember", Title: "remember what the node must get back", Skip: n.remembered, Do: n.remember},
		step.OnlyIf(n.Plan.Rebuild == "", step.Step{ID: "drain", Code: fault.DrainBlocked, Title: "drain " + n.Plan.Node, Risk: step.Disruptive, Do: n.drain}),
		step.OnlyIf(n.etcd.leaves(), step.Step{ID: "leave-etcd", Code: fault.EtcdUnhealthy, Title: "leave etcd: its data goes with the system disk", Risk: step.Destructive, Skip: n.etcd.left, Do: n.etcd.leave}),
		step.Step{ID: "stop", Title: fmt.Sprintf("stop VM %d", n.Plan.VMID), Risk: step.Disruptive, Skip: n.stoppedFor, Do: n.stop},
	)
	down.Skip = n.takenDown
	return down
}

// up brings a node up in the VM that it gets, or that it has.
func (n *node) up(system step.Step) step.Step {
	x, s, vm := n.record.source(), n.Plan.Strategy, n.Plan.VMID
	rollback, stays := s.System() == cluster.SystemKept, s.Reshapes()
	return x.BringUp(
		system,
		step.OnlyIf(stays && (n.Plan.Resume || n.Plan.VM.Moves(shape.Off) != ""), x.Migrate(!n.Plan.Resume)),
		step.OnlyIf(!rollback && !n.Want.Shape.IsEmpty(), x.Reshape()),
		step.Step{ID: "start", Code: fault.NoBoot, Title: fmt.Sprintf("start VM %d", vm), Skip: n.started, Do: n.start},
		step.OnlyIf(rollback, n.bootEntryStep(func(parking.Memory) string { return n.Plan.Restore.Entry })),
		step.OnlyIf(n.installs(), step.Step{ID: "configure", Code: fault.NoBoot, Title: "check the blank machine and configure it", Risk: step.Destructive, Skip: n.configured, Do: n.configureBlank}),
		step.OnlyIf(n.Plan.Bootstraps, restore.First(n.Node, n.roller.Files, n.roller.Rebuild)),
		step.Step{ID: "wait-healthy", Code: fault.NoJoin, Title: "wait until " + n.Plan.Node + " is healthy", Skip: n.healthy, Do: n.waitHealthy},
		step.OnlyIf(n.Plan.Bootstraps && n.Plan.Rebuild != "", n.restartKubelets()),
		x.Finish(n.givesBack(), n.frees()...),
	)
}

// restartKubelets is for a broken cluster whose etcd has just begun again: all control planes are made again.
func (n *node) restartKubelets() step.Step {
	from := n.roller.Rebuild
	return restore.Kubelets{
		Talos: n.Talos, Kube: n.Kube, Fresh: from.Gone, Left: from.Left,
		Say: func(text string) { n.Tell("bring-up/restart-kubelets", text) },
	}.Step()
}
