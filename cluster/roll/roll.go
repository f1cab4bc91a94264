// Package roll carries out a plan. The main type is [Roller]: [Roller.Steps] derives the step tree of a plan, and
// node.life has the order of the steps of a node. The bodies of the steps are in a file for each topic (take-down,
// bring-up, health, …). What must hold before a node is touched is [rolling.Node.CheckGate].
//
// [Rehearser] first tries out what nodes will boot: on each host, for each kind of firmware, a scratch VM made like
// the nodes' boots the ISO, or a disk made from the disk image, to maintenance mode, is compared with the build, and
// is deleted; [ScratchPruner] deletes what a killed run has left. [HookCall] runs the user's commands at a point of a
// run. Before a node goes, and after it is back, the volumes that storage systems keep on several nodes are waited
// for (health.go).
package roll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// Roller carries out a plan.
type Roller struct {
	*rolling.Roll
	Files     cluster.FileReader // of the machines
	Objects   cluster.ObjectJudge
	Commands  cluster.CommandRunner
	Rehearser *Rehearser

	ParkingIDs   []cluster.VMID    // VMIDs that a parking VM may take, in order
	VMIDs        cluster.VMIDRange // from recast.yaml; it is written into the records
	Fingerprints []string          // of certificates in maintenance mode that a person has confirmed: see cluster.Proof
	DrainForce   bool
	DrainDeletes bool                // deletes pods whose eviction is still refused when a drain times out
	BootFailure  cluster.BootFailure // what to do with a node that does not come back from an in-place upgrade
	SnapshotDir  string              // where snapshots of etcd are saved
	Rebuild      etcd.Source         // what a broken cluster's etcd begins with again
	History      cluster.History

	// MachineConfig returns a node's configuration if the user keeps it in files; found is false if it must be read
	// from the node before the node goes down.
	MachineConfig func(ctx context.Context, node string) (config cluster.Secret, found bool, err error)
	// Hooked, if set, receives the result of each hook.
	Hooked func(planning.HookRun)

	parkingNumbers parking.Numbers
	leaving        leaving
}

// Steps builds the tree of a roll from its plan: a branch per phase, and in it one per node, in the plan's order.
func (r *Roller) Steps(p planning.Plan) step.Step {
	work := p.Work()
	return step.Step{
		ID:    "roll",
		Title: fmt.Sprintf("roll %d of %d %s", len(work), len(p.Nodes), words.Plural(len(p.Nodes), "node")),
		Risk:  step.Destructive, LookAhead: 1,
		Steps: func(context.Context) ([]step.Step, error) {
			steps := r.Rehearser.Steps(p)
			if p.Bootstrap == "" && slices.ContainsFunc(work, planning.NodePlan.NeedsSnapshot) {
				steps = append(steps, r.SnapshotStep(p, r.SnapshotDir))
			}
			for _, b := range p.Batches {
				branch, err := r.phase(p, b)
				if err != nil {
					return nil, err
				}
				steps = append(steps, branch)
			}
			return steps, nil
		},
	}
}

func (r *Roller) phase(p planning.Plan, b planning.Batch) (step.Step, error) {
	var steps, first []step.Step
	ahead := min(b.Limit+1, maxAhead)
	for i, n := range p.Of(b) {
		if len(n.Refused) > 0 {
			return step.Step{}, fault.PlanRefused.Refusedf("node %s: %s", n.Node, n.Refused[0])
		}
		branch := r.planned(p, n, b.Phase).branch()
		branch.Alone = n.OwnPod // its drain ends this run
		steps = append(steps, branch)
		if i < ahead && len(branch.Ahead) > 0 {
			early := branch.Ahead
			first = append(first, step.Step{ID: branch.ID, Title: branch.Title, Quiet: true, Steps: func(context.Context) ([]step.Step, error) { return early, nil }})
		}
	}
	steps = r.aroundBatch(p.Hooks, b, steps)
	return step.Step{
		ID: string(b.Phase), Title: p.Title(b), Risk: step.Destructive, Limit: b.Limit, LookAhead: ahead, Ahead: first, Beside: b.Beside,
		Steps: func(context.Context) ([]step.Step, error) { return steps, nil },
	}, nil
}

// maxAhead is the maximum number of nodes that fetch their installer ahead of their turn: more
// would only compete for the registry's bandwidth.
const maxAhead = 10

// DrawnSteps are the steps of a roll of p for node n, for display only: they can't ask the world what is already done.
func DrawnSteps(p planning.Plan, n planning.NodePlan, t cluster.Timing) ([]step.Step, error) {
	drawn, err := rolling.PlannedExchange(n)
	if err != nil {
		return nil, err
	}
	r := &Roller{Roll: &rolling.Roll{Cluster: p.Cluster, Timing: t, Say: func(string, string) {}}}
	of := r.planned(p, n, n.Phase)
	of.record.drawn = drawn
	return slices.Concat(of.pullSteps(), of.life()), nil
}

// life lists everything that happens to a node, in order; a step that does not apply is left out. Rehearsals and a
// snapshot of etcd come before the first node (Roller.Steps), the user's hooks around each batch
// (Roller.aroundBatch). Every Skip asks the world whether its step is done, so an interrupted roll resumes by
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
			when(isNew, n.rememberStep("record what is to be made", n.openNew)),
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
		step.OnlyIf(n.etcd.leaves(), step.Step{
			ID: "leave-etcd", Code: fault.EtcdUnhealthy, Title: "leave etcd: its data goes with the system disk",
			Risk: step.Destructive, Skip: n.etcd.left, Do: n.etcd.leave,
		}),
		n.stopStep(n.stoppedFor),
	)
	down.Skip = n.takenDown
	return down
}

// bringUp brings a node up, with its system disk, in its new or kept VM. After renew-disk and attach, the VM has
// all its disks.
func (n *node) bringUp() step.Step {
	p, s, x := n.Plan, n.Plan.Strategy, n.record.source()
	keeps, first, from := s.System() == cluster.SystemKept, p.Bootstraps, n.roller.Rebuild
	kubelets := etcd.Kubelets{ // of a broken cluster whose etcd has just begun again: all control planes are recreated
		Talos: n.Talos, Kube: n.Kube, Fresh: from.Gone, Left: from.Left,
		Say: func(text string) { n.Tell("bring-up/restart-kubelets", text) },
	}
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
		step.OnlyIf(first, beginEtcd(n.Node, n.roller.Files, from)),
		n.waitStep(fault.NoJoin, n.healthy, n.waitHealthy),
		step.OnlyIf(first && p.Rebuild != "", kubelets.Step()),
		x.Finish(n.givesBack(), n.frees()...), // eject, restore-settings, restore-ha, givesBack, keep, frees
	)
}

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
				{ID: "report", Title: "record that the build does not boot here", Do: n.report},
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

// node is one node in a roll (DESIGN §9): what the plan says about it, and what only this process knows. Its steps
// are in order in life.
type node struct {
	*rolling.Node
	roller *Roller
	hooks  cluster.Hooks

	record    *record           // the record on the parking VM, and the exchange that it describes
	etcd      *etcdMember       // membership of a control plane in etcd
	config    savedConfig       // its machine configuration
	userGates rolling.UserGates // the user's gates
	healing   healing           // volumes of which other nodes have copies
	served    served            // volumes of servers that may know the node by name
	serving   serving           // the VM while the node serves

	pulled    bool      // it was told to fetch the installer
	answered  bool      // with the cluster's certificates, since it was replaced
	renewed   bool      // it got another blank system disk after an interrupted installation
	settledAt time.Time // when it had been healthy for the settling time; zero: not yet
}

func (r *Roller) planned(p planning.Plan, n planning.NodePlan, phase planning.Phase) *node {
	n.ControlPlanes, n.Heed = p.ControlPlanes, p.Heed
	of := r.node(rolling.Node{Plan: n, Want: n.Wanted, Path: planning.StepPath(phase, n.Node)})
	of.userGates.Gates, of.hooks = p.Gates, p.Hooks
	return of
}

func (r *Roller) node(h rolling.Node) *node {
	h.Roll = r.Roll
	n := &node{Node: &h, roller: r, config: savedConfig{Node: &h, files: r.MachineConfig}}
	n.record = &record{Node: &h, roller: r, asks: n.RequireNoLossOff, forget: n.config.forget}
	n.etcd = &etcdMember{Node: &h, record: n.record, files: r.Files, backOut: n.backOut}
	n.userGates = rolling.UserGates{Node: &h, Objects: r.Objects, Commands: r.Commands, LeftOpen: n.batchLeftOpen}
	n.healing = healing{Node: &h, leaving: &r.leaving, LeftOpen: n.batchLeftOpen}
	n.served = served{Node: &h, Files: r.Files, LeftOpen: n.batchLeftOpen}
	n.serving = serving{Node: &h}
	return n
}

func (n *node) branch() step.Step {
	title := fmt.Sprintf("%s %s (VM %d on %s)", n.Plan.Strategy, n.Plan.Node, n.Plan.VMID, n.Plan.Host)
	if n.Plan.Run != "" {
		title += ", left unfinished by run " + n.Run
	}
	s := step.Step{ID: n.Plan.Node, Title: title, Risk: step.Destructive, Whole: true, Uses: n.Plan.Slots, Ahead: n.RepeatingAll("", n.pullSteps())}
	s.Skip = n.Repeating("", step.Step{Skip: n.finished}).Skip
	s.Lacks = n.unfinished
	s.Steps = func(context.Context) ([]step.Step, error) { return n.life(), nil }
	if !n.Plan.Strategy.KeepsVM() {
		s = n.explained(s)
	}
	return s
}

func (n *node) explained(s step.Step) step.Step {
	return exchange.Explained(s, func(ctx context.Context, err error) error {
		if errors.Is(err, exchange.ErrUndone) { // its host may have rebooted
			err = fmt.Errorf("VM %d on %s: %w", n.Plan.VMID, n.Plan.Host, err)
		}
		mem, errMemory := n.Memory(ctx)
		if errMemory != nil {
			return err // nothing was started
		}
		park, errPark := n.Parking(ctx)
		rec := park.Record
		if errPark != nil {
			// The record can't be read; the memory has the same facts.
			if rec, errMemory = n.record.opening().Opened(mem, nil); errMemory != nil {
				return err
			}
			park.VM.ID, _ = n.ParkingID(ctx) // 0: not known
		}
		if !rec.Open || rec.Run != n.Run {
			return err
		}
		return n.record.of(mem, rec, park.VM.ID).Located(ctx, err)
	})
}

func (n *node) finished(ctx context.Context) (string, error) {
	s := n.Plan.Strategy
	switch {
	case s.From() == cluster.Blank:
		return n.serves(ctx)
	case s.KeepsVM() && !s.Upgrades():
		return newApplyConfig(n).given(ctx)
	case s.VM() == cluster.VMGone:
		return n.removed(ctx)
	}
	park, err := n.Parking(ctx)
	switch {
	case err != nil && !errors.Is(err, cluster.ErrNotFound):
		return "", err
	case err == nil && park.Record.Open:
		return "", nil
	case s.Reshapes():
		return n.reshaped(ctx)
	case s.System() == cluster.SystemOld:
		n.Out.Remove(n.Plan.Node)
		return "its old system disk is back", nil
	case s.System() == cluster.SystemKept:
		back := n.Plan.Restore
		if slices.ContainsFunc(park.Record.Kept, func(k parking.KeptDisk) bool { return k.Key == back.Key && k.Run == back.Run }) {
			return "", nil
		}
		n.Out.Remove(n.Plan.Node)
		return "it runs its earlier system again", nil
	}
	ended := n.Out.Has(n.Plan.Node) // false before its steps: it is not out yet
	if s.From() == cluster.Nowhere && !ended {
		return "", nil
	}
	d, known, err := n.drift(ctx, park, ended)
	if err != nil || !known || d.Rollable() {
		return "", err
	}
	n.Out.Remove(n.Plan.Node)
	return fmt.Sprintf("runs %s build %s", n.Want.Build.TalosVersion, words.Short(n.Want.Build.ID)), nil
}

func (n *node) unfinished(ctx context.Context) (string, error) {
	if !n.Plan.Strategy.BringsImage() {
		return "", nil // its goal is another one, named by the title
	}
	park, err := n.Parking(ctx)
	switch {
	case err != nil && !errors.Is(err, cluster.ErrNotFound):
		return "", err
	case err == nil && park.Record.Open:
		return fmt.Sprintf("the record on %s is still open", park.VM), nil
	}
	d, known, err := n.drift(ctx, park, false)
	if err != nil || !known {
		return "its machine does not answer", err
	}
	reasons := cluster.Each(d.Reasons, func(r cluster.Reason) string { return r.Text })
	return strings.Join(reasons, "; "), nil
}

// drift returns how the node differs from what is wanted now. known is false if its machine does not answer, which
// is an error once the node has ended.
func (n *node) drift(ctx context.Context, park parking.Parking, ended bool) (d observe.Drift, known bool, err error) {
	vm, err := n.Proxmox.VMConfig(ctx, n.Plan.VMID)
	if err != nil {
		return d, false, fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	m, err := cluster.ReadCompared(ctx, n.Talos, n.Plan.Addr)
	switch {
	case err != nil && ended:
		return d, false, n.sayIfOff(ctx, fmt.Errorf("read machine %s: %w", n.Plan.Addr, err))
	case err != nil || m.ConfigHidden:
		return d, false, nil //nolint:nilerr // a machine that does not answer is not finished; bring-up says why
	}
	k, err := n.Kube.Node(ctx, n.Plan.Node)
	switch {
	case err == nil || errors.Is(err, cluster.ErrNotFound):
	case ended:
		return d, false, fmt.Errorf("ask Kubernetes for node %s: %w", n.Plan.Node, err)
	default:
		return d, false, nil //nolint:nilerr // a single control plane's API is down with it
	}
	inKubernetes := err == nil
	if inKubernetes {
		m.RunningSystem = k.Corrected(m.RunningSystem, "")
	}
	f := observe.Found{Name: n.Want.Name, VM: &vm, Machine: &m}
	if len(n.Plan.VM) > 0 {
		if _, f.Shape, err = n.serving.Running().Now(ctx); err != nil {
			return d, false, err
		}
	}
	if park.VM.ID != 0 {
		f.Parking = &park
	}
	if inKubernetes {
		f.Node = &k
	}
	return observe.Diff(n.Want, f, n.roller.History), true, nil
}

// reshaped is the goal of a node that only gets another VM. What a newer recast.yaml wants of a resumed node is
// planned again afterwards.
func (n *node) reshaped(ctx context.Context) (string, error) {
	done, err := n.serving.Finished(ctx)
	if !done && !n.Plan.Resume {
		return n.backIn(ctx, "", err)
	}
	return n.backIn(ctx, "its VM is as wanted", err)
}

// backIn is the end of a goal: for that reason the node is as wanted, if it takes pods again.
func (n *node) backIn(ctx context.Context, reason string, err error) (string, error) {
	pods := ""
	if err == nil && reason != "" {
		pods, err = n.uncordoned(ctx)
	}
	switch {
	case err != nil && !n.Out.Has(n.Plan.Node): // before its steps
		return "", nil //nolint:nilerr // they say what is wrong
	case pods == "":
		return "", err
	}
	n.Out.Remove(n.Plan.Node)
	return reason, nil
}

// record is the record on the parking VM, and the exchange that it describes. Where each disk goes
// is written once, when the record is opened, so an earlier read of that stays valid.
type record struct {
	*rolling.Node
	roller *Roller
	asks   func(context.Context) error // refuses a system disk that may not leave the node
	forget func() error                // called once the record is closed

	drawn  *exchange.Replace // set if the steps are only listed; nil: the record is read
	opened *exchange.Replace // the exchange as last read from the record; nil: not yet
}

func (n *record) known(ctx context.Context) (*exchange.Replace, error) {
	if n.opened == nil {
		return n.read(ctx)
	}
	return new(*n.opened), nil
}

func (n *record) of(mem parking.Memory, rec parking.Record, park cluster.VMID) *exchange.Replace {
	r := exchange.Of(n.Proxmox, mem, rec, park)
	r.ISO, r.SystemGiB, r.Asks = n.Published().ISO, n.Want.SystemGiB, n.asks
	r.Shape, r.Image, r.DiskBytes = n.Want.Shape, n.Published().Disk, n.Want.Build.DiskBytes
	if b := n.Want.Build; b.ID == rec.Build {
		r.Made = parking.KeptDisk{Build: b.LockHash, Talos: b.TalosVersion}
	}
	r.Late, r.Say, r.Pods = &n.Late, n.Tell, n.Kube.PodVolumes
	r.Frees, r.Forget = n.Plan.Frees, n.forget
	return r
}

// open creates the parking VM, or uses the one of an earlier roll, and writes the open record to
// it. From here on the replacement is unfinished.
func (n *record) open(ctx context.Context, mem parking.Memory) error {
	var earlier *parking.Parking
	park, err := n.Parking(ctx)
	switch {
	case err == nil:
		n.Late.Forgetting(park.VM.ID, func(*parking.Record) {})(&park.Record)
		earlier = &park
	case !errors.Is(err, cluster.ErrNotFound):
		return err
	}
	id, rec, err := exchange.OpenParking(ctx, n.Proxmox, n.opening(), mem, earlier, n.roller.ParkingIDs, &n.roller.parkingNumbers, func(id cluster.VMID) error {
		// Noted before the VM exists, so that a crash in between does not orphan it.
		return fault.Prefix("journal", n.Journal.Put(n.Key("parking"), id))
	})
	if err != nil {
		return err
	}
	rec.Parking = id
	return fault.Prefix("journal", n.Journal.Put(n.Key(parking.JournalKey), rec))
}

func (n *record) opening() parking.Record {
	return parking.Record{
		Cluster: n.Cluster, Node: n.Plan.Node, Run: n.Run, VMIDs: n.roller.VMIDs.String(), Build: n.Plan.Build(), Strategy: n.Plan.Strategy,
		Rebuild: n.Plan.Rebuild, Addr: n.Plan.Addr, Restore: n.Plan.Restore, Prepared: n.Plan.Prepared, Nth: parking.NextNth(n.Plan.Found.Parkings()), New: n.Plan.Found.MadeNew(),
	}
}

func (n *record) read(ctx context.Context) (*exchange.Replace, error) {
	if n.drawn != nil {
		return new(*n.drawn), nil
	}
	park, err := n.Parking(ctx)
	if err != nil {
		return nil, err
	}
	return n.with(ctx, park)
}

func (n *record) source() exchange.Source {
	return exchange.Source{Node: n.Plan.Node, Strategy: n.Plan.Strategy, Prepared: n.Plan.Prepared != "", Read: n.read, Known: n.known}
}

func (n *record) with(ctx context.Context, park parking.Parking) (*exchange.Replace, error) {
	mem, err := n.Memory(ctx)
	if err != nil {
		return nil, err
	}
	if !park.Record.Open || park.Record.Run != n.Run {
		return nil, fault.ParkedHalf.Refusedf("%s no longer has an open record of run %s: another run was here", park.VM, n.Run)
	}
	n.opened = n.of(mem, park.Record, park.VM.ID)
	return new(*n.opened), nil
}

func (n *record) sending(ctx context.Context, what string, within time.Duration, send func(context.Context) error) error {
	r, err := n.read(ctx)
	if err != nil {
		return err
	}
	return r.Sending(ctx, what, within, send)
}

// noteStage records how far the system on the new disk may get from here on.
func (n *record) noteStage(ctx context.Context, s parking.Stage) error {
	if !n.Plan.Strategy.Replaces() {
		return nil
	}
	park, err := n.Parking(ctx)
	if err != nil || !park.Record.Open || park.Record.Stage == s {
		return err
	}
	return n.UpdateRecord(ctx, func(rec *parking.Record) { rec.Stage = s })
}

// The IDs of the steps that run hooks.
const (
	hooksBeforeID = "run-hooks"
	hooksAfterID  = "run-hooks-again"
)

// hooksBefore returns the step right before the final gate check; the user's gates have already passed.
// A node that is never taken out runs no hooks.
func (n *node) hooksBefore() []step.Step {
	if n.StaysIn() {
		return nil
	}
	steps := n.hookCall(cluster.BeforeNode, hooksBeforeID).Step(hooksBeforeID, "run the hooks before "+n.Plan.Node+" goes", n.hooks.BeforeNode,
		func(ctx context.Context, err error) error {
			fate := n.Plan.Node + " was not touched"
			if n.Plan.Resume {
				fate = n.Plan.Node + " is as the earlier run had left it"
			}
			return failedBefore(ctx, err, "%s; once the hook ends with 0, run the same command again: the hooks before the node run again", fate)
		})
	for i, s := range steps {
		steps[i].Do = func(ctx context.Context) error {
			if err := n.RequireOurs(ctx); err != nil {
				return err // the final gate check refuses this too, but the hooks would have run for nothing
			}
			return s.Do(ctx)
		}
	}
	return yielding(steps)
}

// hooksAfter returns the step for a node that is back. It comes before the user's gates are asked,
// because a hook may clear what keeps them closed, such as a Ceph flag. It does not yield, because
// the next run would not run it for a node that is done.
func (n *node) hooksAfter() []step.Step {
	if n.StaysIn() {
		return nil
	}
	return n.hookCall(cluster.AfterNode, hooksAfterID).Step(hooksAfterID, "run the hooks with "+n.Plan.Node+" back", n.hooks.AfterNode,
		func(_ context.Context, err error) error {
			if err != nil {
				err = fmt.Errorf("%s is done and takes pods, but no other node is to follow: %w", n.Plan.Node, err)
			}
			return n.batchLeftOpen(failedAfter(err, "recast roll continues with the next node, and does not run the hooks after %s again: do by hand what they had to do", n.Plan.Node))
		})
}

// batchLeftOpen adds a hint to the error of a node that is done. The node may have been the last of
// its batch, and then no later run runs the hooks after the batch.
func (n *node) batchLeftOpen(err error) error {
	if err == nil || len(n.hooks.AfterBatch) == 0 {
		return err
	}
	phase, _, _ := planning.NodeOfStep(n.Path)
	return fault.WithHint(err, "the hooks after the batch %s were not run, and the next run runs them only if it still has a node to roll in it: else do by hand what they had to do", phase)
}

func (n *node) hookCall(p cluster.HookPoint, id string) HookCall {
	phase, _, _ := planning.NodeOfStep(n.Path)
	key := n.Key("hooks/" + strings.ToLower(string(p)))
	return n.roller.hookCall(p, phase, n.Plan.Node, n.hookEnv(p), n.Path+"/"+id, key)
}

// hookEnv describes the node to hooks; an unknown value is "".
func (n *node) hookEnv(p cluster.HookPoint) []string {
	build, talos := n.Want.Build.ID, n.Want.Build.TalosVersion
	switch n.Plan.Strategy.System() {
	case cluster.SystemKept, cluster.SystemOld:
		build, talos = "", ""
		if back := n.Plan.Restore; back != nil {
			build, talos = back.Build, back.Talos
		}
	}
	env := []string{
		"RECAST_NODE=" + n.Plan.Node, "RECAST_ROLE=" + n.Plan.Role, "RECAST_STRATEGY=" + string(n.Plan.Strategy),
		"RECAST_VMID=" + strconv.Itoa(int(n.Plan.VMID)), "RECAST_HOST=" + n.Plan.Host,
		"RECAST_TALOS_VERSION=" + talos, "RECAST_BUILD_ID=" + build, "RECAST_RESUMED=" + strconv.FormatBool(n.Plan.Resume),
	}
	if n.Plan.Addr.IsValid() {
		env = append(env, "RECAST_ADDRESS="+n.Plan.Addr.String())
	}
	return env
}

// HookCall runs the hooks of one point.
type HookCall struct {
	Commands cluster.CommandRunner
	Point    cluster.HookPoint
	Batch    planning.Phase
	Node     string
	Env      []string
	Say      func(text string)                      // receives what they print
	Keep     func(hr planning.HookRun, i int) error // if set, receives the result of the i-th hook when it has ended
}

// Run runs the hooks one after the other, and stops at the first that fails.
func (c HookCall) Run(ctx context.Context, hooks []cluster.Hook) error {
	env := append([]string{"RECAST_HOOK=" + string(c.Point)}, c.Env...)
	for i, h := range hooks {
		run, err := c.one(ctx, h, env)
		if c.Keep != nil {
			err = errors.Join(err, c.Keep(run, i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c HookCall) one(ctx context.Context, h cluster.Hook, env []string) (planning.HookRun, error) {
	run := planning.HookRun{Point: c.Point, Batch: c.Batch, Node: c.Node, Description: h.Description, Command: h.Command.Args, Started: time.Now()}
	c.Say(fmt.Sprintf("hook %q: running %s", h.String(), h.Command.Args[0]))
	within, cancel := context.WithTimeoutCause(ctx, h.Timeout(), fmt.Errorf("its timeout of %s is over", h.Timeout()))
	defer cancel()
	end, err := c.Commands.RunHook(within, h.Command, env, c.Say)
	run.Seconds, run.Output = time.Since(run.Started).Seconds(), end.Output
	switch {
	case err == nil && end.Exit != 0:
		run.Exit = &end.Exit
		err = fmt.Errorf("%s ended with %d", h.Command.Args[0], end.Exit)
		if end.Said != "" {
			err = fmt.Errorf("%w: %s", err, end.Said)
		}
	case err == nil:
		run.Exit = &end.Exit
		return run, nil
	}
	run.Error = err.Error()
	return run, fmt.Errorf("hook %q: %w", h.String(), err)
}

// Step returns the step that runs the hooks of one point; nil if there are none.
func (c HookCall) Step(id, title string, hooks []cluster.Hook, failed func(context.Context, error) error) []step.Step {
	if len(hooks) == 0 {
		return nil
	}
	if len(hooks) == 1 {
		title += ": " + hooks[0].String()
	}
	return []step.Step{{ID: id, Title: title, Alone: true, Do: func(ctx context.Context) error { return failed(ctx, c.Run(ctx, hooks)) }}}
}

// BeforeRunFailed is the error of a hook before the run.
func BeforeRunFailed(ctx context.Context, err error) error {
	return failedBefore(ctx, err, "no node was touched; once the hook ends with 0, run the same command again: the hooks before the run run again")
}

func failedAfter(err error, format string, args ...any) error {
	if err == nil || fault.KindOf(err) == fault.Interrupted {
		return err
	}
	return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Failed, err)), format, args...)
}

func failedBefore(ctx context.Context, err error, format string, args ...any) error {
	if err == nil || ctx.Err() != nil || fault.KindOf(err) == fault.Config {
		return err
	}
	return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Refused, err)), format, args...)
}

// hookCall returns the call of the hooks of one point. path is that of its step, and key that of the
// results in the journal.
func (r *Roller) hookCall(p cluster.HookPoint, batch planning.Phase, node string, env []string, path, key string) HookCall {
	env = append([]string{"RECAST_CLUSTER=" + r.Cluster, "RECAST_RUN=" + r.Run, "RECAST_BATCH=" + string(batch)}, env...)
	if p == cluster.AfterNode || p == cluster.AfterBatch { // they run only if it is done
		env = append(env, "RECAST_OUTCOME=done")
	}
	return HookCall{
		Commands: r.Commands, Point: p, Batch: batch, Node: node, Env: env, Say: func(text string) { r.Say(path, text) },
		Keep: func(run planning.HookRun, i int) error {
			if r.Hooked != nil {
				r.Hooked(run)
			}
			return fault.Prefix("journal", r.Journal.Put(key+"/"+strconv.Itoa(i+1), run))
		},
	}
}

// The IDs of the steps that run the hooks of a batch. They are siblings of its nodes, and have an
// underscore, which a node name can't have.
const (
	beforeBatch = "hooks_before"
	afterBatch  = "hooks_after"
)

func (r *Roller) aroundBatch(hooks cluster.Hooks, b planning.Batch, steps []step.Step) []step.Step {
	phase := b.Phase
	call := func(point cluster.HookPoint, id string) HookCall {
		return r.hookCall(point, phase, "", []string{"RECAST_NODES=" + strings.Join(b.Nodes, " ")}, "roll/"+string(phase)+"/"+id, "hooks/"+strings.ToLower(string(point))+"/"+string(phase))
	}
	before := call(cluster.BeforeBatch, beforeBatch).Step(beforeBatch, "run the hooks before this batch", hooks.BeforeBatch,
		func(ctx context.Context, err error) error {
			return failedBefore(ctx, err, "no node of this batch was touched; once the hook ends with 0, run the same command again: the hooks before the batch run again")
		})
	after := call(cluster.AfterBatch, afterBatch).Step(afterBatch, "run the hooks after this batch", hooks.AfterBatch,
		func(_ context.Context, err error) error {
			if err != nil {
				err = fmt.Errorf("the nodes of this batch are done, but no other batch is to follow: %w", err)
			}
			return failedAfter(err, "recast roll continues with the next batch, and does not run the hooks after this one again: do by hand what they had to do")
		})
	for i := range after {
		after[i].Closes = true // nothing else undoes what the hooks before the batch did
	}
	return append(append(yielding(before), steps...), after...)
}

// yielding lets other nodes go on while these steps wait.
func yielding(steps []step.Step) []step.Step {
	for i := range steps {
		steps[i].Yields = true
	}
	return steps
}
