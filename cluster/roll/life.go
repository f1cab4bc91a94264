package roll

import (
	"context"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// life lists everything that happens to a node, in order; a step that does not apply is left out. Rehearsals and a
// snapshot of etcd come before the first node (Roller.Steps), the user's hooks around each batch
// (hookRunner.AroundBatch). Every Skip asks the world whether its step is done, so an interrupted roll resumes by
// running the same list again. What must hold before anything is touched is in rolling (Node.look).
func (n *node) life() []step.Step {
	p, s := n.Plan, n.Plan.Strategy
	isNew, removes, upgrades := s.From() == cluster.Nowhere, s.VM() == cluster.VMGone, s.Upgrades()
	onlyDisk, broken := removes && p.Found.Absent != nil, p.Rebuild != "" // an earlier removal left a disk; the cluster is rebuilt
	u, c, v, stops := &inPlace{node: n}, newApplyConfig(n), n.asStopped(), n.stopsVM()
	gets := s.KeepsVM() && !upgrades // a configuration, and nothing else
	// A resumed node gets only the steps that make it serve: what it runs is checked when it answers.
	begins, ends := gets && !p.Resume && c.reboots, gets && (p.Resume || c.reboots)
	return slices.Concat(
		n.userGates.Before(),
		n.healing.Before(),
		n.served.Before(),
		n.hooksBefore(),
		n.RepeatingAll("", slices.Concat(
			when(isNew && broken && !p.Bootstraps, forgetGone(n.Node)),
			when(!onlyDisk, n.gateStep()),
			when(!removes && s.From() != cluster.Halfway, n.serving.Steps()...), // migrate, reshape-live
			when(s.From() == cluster.Halfway, n.putBack()),
			when(s.From() == cluster.Blank, step.Step{
				ID: "configure", Code: fault.NoBoot, Title: "give " + p.Node + " its machine configuration",
				Risk: step.Disruptive, Skip: n.configured, Do: n.configureReset,
			}),
			when(s.From() == cluster.Blank, n.waitStep(fault.NoJoin, n.serves, n.waitReset)),
			when(upgrades, u.upgrade()),
			when(upgrades, n.waitStep(fault.UpgradeStuck, u.bootHealthy, u.waitBootHealthy)),
			when(upgrades, u.fallback()),
			when(upgrades && p.WithConfig, c.afterUpgrade()),
			when(upgrades, u.finish()),
			when(gets && !p.Resume && !c.reboots, c.tryStep()),
			when(begins, step.Step{ID: "remember", Title: "keep the old machine configuration at hand", Do: c.rememberOld}),
			when(begins, n.drainStep(c.drainMarked)),
			when(begins, c.stageStep()),
			when(begins, c.rebootStep(c.reboot)),
			when(ends, n.waitStep(fault.NoJoin, n.serves, c.waitServes)),
			when(ends && !stops, n.uncordonStep(n.config.thenForget(n.uncordon))),
			when(isNew, n.rememberStep("note what is to be made", n.openNew)),
			when(stops, v.takeDown()),
			when(stops && !removes || isNew, v.bringUp()),
			when(isNew && n.Want.Shape.HA != nil, n.serving.Reshape()),
			when(removes && !onlyDisk && !broken, n.deleteNodeStep()),
			when(removes && !onlyDisk, step.Step{ID: "keep", Title: "keep its disks parked", Skip: n.kept, Do: n.keepDisks}),
			when(onlyDisk || removes && n.Want.Surge && !broken, n.FreeRemoved()),
		)),
		n.hooksAfter(),
		n.healing.After(),
		n.served.After(),
		n.userGates.After(),
	)
}

// goal returns why there is nothing to do; "": there is.
type goal = func(context.Context) (string, error)

// when returns the steps if they apply.
func when(applies bool, steps ...step.Step) []step.Step {
	if !applies {
		return nil
	}
	return steps
}

// takeDown takes a node down and moves its disks to safety. After prepare-disk and stop its VM is off; unprotect,
// park and delete-vm follow. What must hold before the VM is deleted is in exchange.Replace.deleteSame.
func (n *node) takeDown() step.Step {
	down := n.record.source().TakeDown(
		n.rememberStep("remember what the node must get back", n.remember),
		step.OnlyIf(n.Plan.Rebuild == "", n.drainStep(n.drain)),
		step.OnlyIf(n.etcd.leaves(), n.etcd.leaveStep()),
		n.stopStep(n.stoppedFor),
	)
	down.Skip = n.takenDown
	return down
}

// bringUp brings a node up, with its system disk, in its new or kept VM. After renew-disk and attach, the VM has
// all its disks.
func (n *node) bringUp() step.Step {
	p, s, x := n.Plan, n.Plan.Strategy, n.record.source()
	keeps, first := s.System() == cluster.SystemKept, p.Bootstraps
	return x.BringUp(
		n.newSystem(),
		step.OnlyIf(s.Reshapes() && (p.Resume || p.VM.Moves(shape.Off) != ""), x.Migrate(!p.Resume)),
		step.OnlyIf(!keeps && !n.Want.Shape.IsEmpty(), x.Reshape()),
		n.startStep(),
		step.OnlyIf(keeps, n.bootEntryStep(func(parking.Memory) string { return p.Restore.Entry })),
		step.OnlyIf(s.Installs(), step.Step{
			ID: "configure", Code: fault.NoBoot, Title: "check the blank machine and configure it", Risk: step.Destructive,
			Skip: n.configured, Do: n.configureBlank,
		}),
		step.OnlyIf(first, beginEtcd(n.Node, n.roller.Files, n.roller.Rebuild)),
		n.waitStep(fault.NoJoin, n.healthy, n.waitHealthy),
		step.OnlyIf(first && p.Rebuild != "", n.restartKubelets()),
		x.Finish(n.givesBack(), n.frees()...), // eject, restore-settings, restore-ha, givesBack, keep, frees
	)
}

// givesBack lists the steps that give the node back what was taken away from it.
func (n *node) givesBack() []step.Step {
	restore := step.Step{ID: "restore-node", Title: "restore labels and taints", Do: n.restoreMetadata}
	return []step.Step{restore, rolling.NoteEntry(n.Node), n.uncordonStep(n.uncordon)}
}

// putBack cancels an unfinished replacement: every disk goes back to where it was, also the old system disk, and
// the node runs its old system again. This needs no secrets, so it works from any machine.
func (n *node) putBack() step.Step {
	stop := func(r *exchange.Replace) []step.Step {
		return []step.Step{
			{
				ID: "leave-etcd", Title: "take the replacement out of etcd",
				Do: func(ctx context.Context) error { return n.leaveAsReplacement(ctx, r) },
			},
			{
				ID: "stop", Title: fmt.Sprintf("stop VM %d", n.Plan.VMID), Risk: step.Disruptive,
				Skip: func(ctx context.Context) (string, error) { return n.standsStill(ctx, r) },
				Do:   func(ctx context.Context) error { return n.stopReplacement(ctx, r) },
			},
		}
	}
	start := []step.Step{n.startStep(), n.bootEntryStep(func(mem parking.Memory) string { return mem.Old.Entry }), n.waitStep(fault.NoJoin, n.healthy, n.waitHealthy)}
	return n.record.source().PutBack(stop, start, n.givesBack())
}

// upgrade installs another system beside the running one, on the node's own disk, and boots it. The mark on the
// Node tells one boot from the next, and so a silent rollback from a slow reboot: it is set before anything is
// touched, and removed last.
func (n *inPlace) upgrade() step.Step {
	return step.Step{
		ID: "upgrade", Title: "upgrade " + n.Plan.Node + " in place", Risk: step.Disruptive, Skip: n.runsWanted,
		Steps: step.List(
			step.Step{ID: "remember", Title: "keep the machine configuration at hand", Do: n.keepWayBack},
			n.drainStep(n.drainMarked),
			step.Step{
				ID: "install", Code: fault.UpgradeStuck, Title: "install the new system beside the running one",
				Risk: step.Disruptive, Skip: n.installed, Do: n.install,
			},
			step.Step{ID: "reboot", Code: fault.UpgradeStuck, Title: "boot it", Risk: step.Disruptive, Skip: n.runsWanted, Do: n.reboot},
		),
	}
}

// finish ends an upgrade in place. A node whose VM is still to be stopped stays drained.
func (n *inPlace) finish() step.Step {
	steps := []step.Step{
		exchange.EjectStep(n.Proxmox, n.Plan.VMID),
		{ID: "set-installer", Title: "set the installer in the machine configuration", Skip: n.installerSet, Do: n.setInstaller},
		step.OnlyIf(!n.stopsForShape(), n.uncordonStep(n.config.thenForget(n.uncordon))),
	}
	steps = append(steps, n.FreeSteps("finish")...)
	return step.Step{ID: "finish", Title: "take pods again", Steps: step.List(steps...)}
}

// fallback reimages a node that did not come back from its upgrade, and then fails: the node serves
// again, but not with the wanted build.
func (n *inPlace) fallback() step.Step {
	return step.Step{
		ID: "fallback", Title: "install the build that it had on a blank system disk", Risk: step.Destructive,
		Skip: n.cameBack,
		Steps: func(context.Context) ([]step.Step, error) {
			f := n.roller.node(*n.AsReimage())
			return []step.Step{
				{ID: "gate", Title: "check that it can be reimaged", Do: f.CheckGate},
				f.rememberStep("open the record of the reimage", f.openRemembered),
				f.stopStep(f.stopped),
				f.record.source().Park(),
				f.bringUp(),
				{ID: "report", Title: "note that the build does not boot here", Do: n.report},
			}, nil
		},
	}
}

// afterUpgrade gives a node that was upgraded in place, and is still drained, its configuration in the same outage.
func (n *applyConfig) afterUpgrade() step.Step {
	return step.Step{
		ID: "configure", Title: "give " + n.Plan.Node + " its machine configuration", Risk: step.Disruptive,
		Skip: n.alreadyRuns, Steps: step.List(
			step.OnlyIf(!n.reboots, n.tryStep()),
			step.OnlyIf(n.reboots, n.stageStep()),
			step.OnlyIf(n.reboots, n.rebootStep(n.markAndReboot)),
			step.OnlyIf(n.reboots, n.waitStep(fault.NoJoin, nil, n.waitServes)),
		),
	}
}

// gateStep is the last check whether the node may be taken out.
func (n *node) gateStep() step.Step {
	title := "check that it is safe to take " + n.Plan.Node + " out"
	if n.Plan.Strategy.From() == cluster.Nowhere {
		title = "check that it is safe to make " + n.Plan.Node
	}
	return step.Step{ID: "gate", Code: fault.GateClosed, Title: title, Do: n.CheckGate}
}

func (n *node) stopsForShape() bool { return len(n.Plan.VM.At(shape.Off)) > 0 }

// stopsVM says whether the node's present VM is taken down. Put-back stops a VM by a step of its own.
func (n *node) stopsVM() bool {
	switch s := n.Plan.Strategy; {
	case s.Reshapes():
		return n.Plan.Resume || n.stopsForShape()
	case s.KeepsVM():
		return n.stopsForShape()
	case s.VM() == cluster.VMGone:
		return n.Plan.Found.Absent == nil
	default:
		return s.VM() == cluster.VMAgain || s.VM() == cluster.VMOff
	}
}

// asStopped returns the node as it is when its VM is stopped. A node that keeps its VM then has its new image or
// configuration, is still drained, and gets its VM another shape in the same outage.
func (n *node) asStopped() *node {
	if !n.Plan.Strategy.KeepsVM() {
		return n
	}
	as := *n.Node
	as.Plan.Strategy, as.Plan.EtcdKept = cluster.Reshape, true
	of := n.roller.node(as)
	of.record.drawn = n.record.drawn
	return of
}
