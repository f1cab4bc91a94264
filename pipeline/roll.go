package pipeline

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// Report is what a roll did.
type Report struct {
	Run     string        `json:"run,omitempty"`     // "" if nothing was started
	Resumed []string      `json:"resumed,omitempty"` // earlier runs that were finished first
	Started time.Time     `json:"started"`
	Ended   time.Time     `json:"ended"`
	Plan    planning.Plan `json:"plan"` // the last plan
	// Rehearsed are the images that were tested on scratch VMs.
	Rehearsed []roll.Rehearsed `json:"rehearsed,omitempty"`

	Outcome string     `json:"outcome"`        // "done", "nothing to do", "interrupted: …", "failed: …"
	Code    fault.Code `json:"code,omitempty"` // of the error, for recast runbook
	Safe    []string   `json:"safe,omitempty"` // what is safe in spite of the error

	Hooks []planning.HookRun `json:"hooks,omitempty"` // in the order in which they ended
	// Afterwards is what a person still has to do.
	Afterwards []string `json:"afterwards,omitempty"`

	Unsent []string `json:"unsent,omitempty"` // why notices could not be sent

	Pages []string `json:"pages,omitempty"` // report files of these runs
}

// Roll brings every selected node to the lock: claim → lock check → plan → build → publish → plan → confirm → roll →
// report. It first finishes what an earlier run left unfinished; then it reads everything again.
func Roll(ctx context.Context, p Project, c Images, m Machines, run *step.Runner, o RollOptions) (Report, error) {
	w := newWork(p, m, run, o, "roll")
	w.refusedHint = "recast plan shows every node; --exclude leaves one out"
	return w.passes(ctx, c)
}

// Bootstrap creates a new cluster: first the control plane on which etcd begins, then all other nodes in parallel. It
// continues an earlier Bootstrap that did not finish. If the cluster exists already, it creates the missing nodes.
// With o.Rebuild, see pipeline/rebuild.
func Bootstrap(ctx context.Context, p Project, c Images, m Machines, run *step.Runner, o RollOptions, first string) (Report, error) {
	o.Policy.Bootstrap = first
	command := "bootstrap"
	if o.Policy.Rebuild != "" {
		command = "rebuild"
	}
	w := newWork(p, m, run, o, command)
	w.refusedHint = "correct that, and run the same command again"
	return w.passes(ctx, c)
}

// movesFollowed bounds how often a roll makes a new plan because a VM was migrated, as Proxmox HA does to rebalance.
const movesFollowed = 5

// passes makes plans and carries them out, until nothing is left unfinished.
func (w *work) passes(ctx context.Context, c Images) (Report, error) {
	return w.end(ctx, func() error {
		if _, err := w.known(); err != nil {
			return err
		}
		if err := w.settle(ctx); err != nil {
			return err
		}
		for {
			unfinished, err := w.pass(ctx, c)
			moved := rolling.OnlyMoved(err)
			switch {
			case moved != nil && w.moves < movesFollowed && ctx.Err() == nil:
				w.moves++
				w.run.Note("roll", fmt.Sprintf("%v: looking again, with a new plan", moved[0]))
			case err != nil:
				return w.surgeStays(err)
			case !unfinished:
				return w.endSurge(ctx, c)
			}
		}
	})
}

// Remove takes a node away: its disks stay parked, its VM and its Node are deleted.
func Remove(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions, node string) (Report, error) {
	w := newWork(p, m, run, o, "remove")
	w.node = node
	return w.single(ctx, func(wanted []cluster.Wanted, seen observe.Observation) (planning.Plan, error) {
		reach, err := m.Talos.Endpoints(ctx)
		if err != nil {
			return planning.Plan{}, err
		}
		plan, err := planning.ForRemove(p.Config.Cluster, wanted, seen, node, reach)
		plan.Gates, plan.Hooks = p.Gates(), p.Hooks()
		return plan, err
	})
}

// single carries out one plan that needs no images.
func (w *work) single(ctx context.Context, makePlan func([]cluster.Wanted, observe.Observation) (planning.Plan, error)) (Report, error) {
	w.refusedHint = "nothing was changed; recast status shows which disks are parked where; to leave nodes out, name only the others"
	return w.end(ctx, func() error {
		lock, err := w.known()
		if err != nil {
			return err
		}
		if err := w.settle(ctx); err != nil {
			return err
		}
		wanted := w.Wanted(lock)
		seen, err := observation(ctx, w.Project, Sources(w.Project, w.machines), wanted, "", "")
		if err != nil {
			return err
		}
		seen.Took, _ = story.Durations(w.Runs().Dir) // for a rollback it is only an estimate
		w.rep.Plan, err = makePlan(wanted, seen)
		if err == nil {
			w.forgetConfigs()
		}
		if err != nil || len(w.rep.Plan.Work()) == 0 && len(w.rep.Plan.Refused()) == 0 {
			return err
		}
		if err := w.ready(ctx); err != nil {
			return err
		}
		return w.carryOut(ctx, lock)
	})
}

type work struct {
	Project
	machines    Machines
	run         *step.Runner
	o           RollOptions
	command     string   // "roll"
	back        []string // the nodes that the user named for undo
	node        string   // the node that remove takes away
	restores    bool     // etcd is lost, and so Kubernetes
	moves       int      // how often a new plan was made since a VM had moved
	rep         Report
	refusedHint string // what to do about a plan with refusals

	began bool     // nodes are being changed, or were
	nodes []string // of all plans
	tally tally

	claim claiming
	left  roll.Leftover
	hooks struct {
		of      cluster.Hooks // of the first plan
		journal string        // of the last plan
	}
	told notices
}

func newWork(p Project, m Machines, run *step.Runner, o RollOptions, command string) *work {
	return &work{
		Project: p, machines: m, run: run, o: o, command: command, rep: Report{Started: time.Now(), Outcome: "nothing to do"},
		claim: claiming{Project: p, machines: m, o: o, say: func(text string) { run.Note("roll", text) }},
	}
}

// end runs do and the hooks after it, always releases the claim, completes the report and sends the last notice.
func (w *work) end(ctx context.Context, do func() error) (Report, error) {
	defer w.run.Listen(w.tally.see)()
	err := w.hooksAfter(ctx, w.claim.judged(do()))
	if w.claim.held != nil {
		err = w.claim.judged(err)
		err = errors.Join(err, w.left.GiveBack(context.WithoutCancel(ctx), w.claim.held.GuardKube(w.machines.Kube), len(w.rep.Plan.Storage) > 0, w.run.Note))
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		err = errors.Join(err, w.claim.held.Release(release))
	}
	w.rep.Ended = time.Now()
	w.rep.Afterwards = append(w.rep.Afterwards, w.rep.Plan.LeftByHand()...)
	if err != nil {
		switch {
		case !w.began:
			err = fault.WithSafe(err, "no node was touched")
		case len(w.nodes) > 0 && len(fault.Safe(err)) == 0: // between two plans, or after the last
			err = w.explain(ctx, err)
		}
		w.rep.Outcome, w.rep.Code, w.rep.Safe = outcome(err), fault.CodeOf(err), fault.Safe(err)
	}
	w.tellEnd(ctx, err)
	if err == nil && w.began {
		if err := w.pruneRuns(ctx); err != nil {
			w.run.Note("roll", "old runs were not removed: "+err.Error())
		}
	}
	return w.rep, err
}

// releaseTimeout limits releasing the claim after Ctrl-C; otherwise the next run takes it over. It is longer than the
// 30 s after which one of several endpoints reports that it can't reach the claim's host.
const releaseTimeout = time.Minute

// settle makes sure that nothing else is active: no other run, and no Proxmox tasks of a killed one.
func (w *work) settle(ctx context.Context) error {
	vms, away, err := readable(ctx, w.Project, w.machines.Proxmox)
	if err != nil {
		return err
	}
	if err := w.requireRun(vms, away); err != nil {
		return err
	}
	state, found, err := w.claim.found(ctx, vms)
	if err != nil {
		return err
	}
	if found && (w.o.Dead == nil || !w.o.Dead(state.Holder)) {
		if err := w.requireWayBack(vms, away); err != nil {
			return err
		}
		parkings, errRead := parking.Readable(vms, w.Config.Cluster)
		if err := w.requireReady(ctx, away != nil || errRead != nil || parking.ControlPlaneOut(parkings)); err != nil {
			return err
		}
	}
	held := w.o.Policy.Bootstrap == "" && w.left.Found(ctx, w.machines.Kube)
	if (found || held) && len(vms) > 0 {
		if err := w.claim.take(ctx, vms[0].Host, w.rep.Plan); err != nil { // any host that answers will do
			return err
		}
	}
	return awaitTasks(ctx, w.Project, w.machines.Proxmox, vms, func(seen string) {
		w.run.Note("roll", "waiting for tasks of an earlier recast: "+seen)
	})
}

// pass makes one plan and carries it out; unfinished says that the plan only finished an
// earlier run, so that another pass must follow.
func (w *work) pass(ctx context.Context, c Images) (unfinished bool, err error) {
	lock, err := w.Lock()
	if err != nil {
		return false, err
	}
	unfinished, err = w.plan(ctx, lock)
	if err != nil || len(w.rep.Plan.Work()) == 0 && len(w.rep.Plan.Refused()) == 0 {
		return false, err
	}
	if err := w.ready(ctx); err != nil {
		return false, err
	}
	ctx, done := w.claim.whileHeld(ctx)
	defer done()
	if w.rep.Plan.NeedsImages() {
		if lock, err = newWorkshop(w.Project, lock, c, w.run).publish(ctx, w.claim.store(), w.rep.Plan.ISOHosts()); err != nil {
			return false, err
		}
		// Building may have taken minutes: make the plan that is shown and run now.
		if unfinished, err = w.plan(ctx, lock); err != nil {
			return false, err
		}
		if err := w.ready(ctx); err != nil {
			return false, err
		}
	}
	return unfinished, w.carryOut(ctx, lock)
}

func (w *work) plan(ctx context.Context, lock schematics.Lock) (unfinished bool, err error) {
	if w.o.Saved != nil && !w.o.Policy.SurgeEnds { // the saved plan shows the end of surge nodes, too
		w.rep.Plan, err = w.follow(ctx, lock, *w.o.Saved)
	} else {
		for again := true; again && err == nil; {
			policy := w.o.Policy
			policy.Rehearse = w.rehearsal()
			w.rep.Plan, err = makePlan(ctx, w.Project, w.machines, lock, policy)
			again = err == nil && w.vouched(w.rep.Plan.Nodes)
		}
	}
	if err == nil {
		w.forgetConfigs()
		w.rep.Plan, unfinished = w.rep.Plan.Unfinished()
	}
	return unfinished, err
}

// vouched asks a person about machines in maintenance mode that show no proof, and says whether one was confirmed: then another plan is made.
func (w *work) vouched(nodes []planning.NodePlan) (confirmed bool) {
	for _, n := range nodes {
		if n.Unproven != "" && w.o.Vouch != nil && w.o.Vouch(n) {
			w.o.Policy.Fingerprints, confirmed = append(slices.Clone(w.o.Policy.Fingerprints), n.Unproven), true
		}
	}
	return confirmed
}

// ready takes the claim and refuses what can't be done, before anything is touched.
func (w *work) ready(ctx context.Context) error {
	plan, px := w.rep.Plan, w.machines.Proxmox
	if reasons := plan.Refused(); len(reasons) > 0 {
		return fault.WithHint(fault.PlanRefused.Refusedf("the plan can't be carried out:\n  %s", strings.Join(reasons, "\n  ")), "%s", w.refusedHint)
	}
	inLease, err := w.claim.keptInLease(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(survey.NeedsOf(plan, inLease).With(survey.NeedsToRehearse(plan)).Check(ctx, px), cluster.RequireQuorum(ctx, px)); err != nil {
		return err
	}
	if err := w.claim.leaseServes(inLease, plan); err != nil {
		return err
	}
	return w.claim.take(ctx, plan.Work()[0].Host, plan)
}

// confirm asks about a plan or report. Only a yes is no error; after a no the error has the text.
func confirm[P any](ask func(P) (bool, error), about P, no string) error {
	ok, err := ask(about)
	if err != nil || ok {
		return err
	}
	return fault.NotConfirmed.Of(fault.As(fault.Interrupted, errors.New(no)))
}

// carryOut asks, and runs the plan under a journal: the journal of the run that it finishes, or a new journal.
func (w *work) carryOut(ctx context.Context, lock schematics.Lock) (err error) {
	no := "not confirmed; nothing was changed on the nodes"
	if w.began {
		no = "not confirmed; nothing more was changed on the nodes"
	}
	if !w.o.Policy.SurgeEnds {
		if err := confirm(w.o.Confirm, w.rep.Plan, no); err != nil {
			return err
		}
	}
	past, err := w.History(lock)
	if err != nil {
		return err
	}
	ctx, done := w.claim.whileHeld(ctx)
	defer done()
	w.rep.Run = w.claim.id
	id := w.claim.id
	if w.rep.Plan.Run != "" {
		id = w.rep.Plan.Run
		if !slices.Contains(w.rep.Resumed, id) {
			w.rep.Resumed = append(w.rep.Resumed, id)
		}
	}
	j, err := journal.Open(w.Runs().Dir, journal.Options{Run: id, Sync: w.o.JournalSync})
	if err != nil {
		return err
	}
	defer j.Close()
	w.o.began(j)
	w.run.Slots = w.rep.Plan.Room
	r := w.roller(id, j, past)
	err = errors.Join(w.keepAbout(j, lock), w.keepPlan(j), j.Resume())
	if err == nil {
		err = w.begin(ctx, j)
	}
	if err == nil {
		kept := w.keepDurations(j)
		still := planning.WatchPulse(ctx, w.rep.Plan, timing(w.Config).Poll, w.machines.Kube, w.machines.Talos, w.o.Pulsed)
		err = w.explain(ctx, w.claim.judged(w.run.Run(ctx, r.Steps(w.rep.Plan))))
		still()
		err = errors.Join(err, kept())
	}
	w.rep.Rehearsed = append(w.rep.Rehearsed, r.Rehearser.Results()...)
	w.rep.Outcome = outcome(err)
	return errors.Join(err, w.forgetOfDone(j), w.keepFates(j), j.Finish(w.rep.Outcome))
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "done"
	case fault.KindOf(err) == fault.Interrupted, fault.KindOf(err) != fault.Claimed && errors.Is(err, context.Canceled):
		return "interrupted: " + err.Error()
	}
	return "failed: " + err.Error()
}

func (w *work) roller(id string, j *journal.Journal, past cluster.History) *roll.Roller {
	m, r := w.machines, w.Config.Roll
	px := claim.WithPatience(w.claim.held.Guard(m.Proxmox), timing(w.Config).Poll, func(text string) { w.run.Note("roll", text) })
	maintenance := w.claim.held.GuardMaintenance(m.Maintenance)
	rehearser := &roll.Rehearser{
		Proxmox: px, Maintenance: maintenance, Kube: m.Kube, Journal: j,
		Cluster: w.Config.Cluster, Run: id, VMIDs: parkingIDs(w.Project), Timing: timing(w.Config), Say: w.run.Note,
		HandedOver: func(h cluster.HandsOver) (bool, error) { return w.Runs().Known(h.Key()) },
	}
	return &roll.Roller{
		Roll: &rolling.Roll{
			Proxmox: px, Talos: w.claim.held.GuardTalos(m.Talos), Maintenance: maintenance, Kube: w.claim.held.GuardKube(m.Kube), Journal: j,
			Cluster: w.Config.Cluster, Run: id, Timing: timing(w.Config), AcceptOutage: w.o.Policy.AcceptOutage || w.rep.Plan.AcceptOutage, Say: w.run.Note,
		},
		Rehearser: rehearser, Files: m.Files, Objects: m.Objects, Commands: m.Commands,
		DrainForce: r.Drain.Force, DrainDeletes: r.Drain.OnTimeout == "delete",
		Fingerprints: slices.Concat(w.o.Policy.Fingerprints, w.rep.Plan.Fingerprints),
		BootFailure:  cluster.BootFailure(r.BootFailure), SnapshotDir: r.EtcdSnapshot, Rebuild: w.o.Rebuild, History: past,
		MachineConfig: m.MachineConfig, Hooked: w.hooked, VMIDs: w.VMIDs(), ParkingIDs: parkingIDs(w.Project),
	}
}

// known checks what can be checked without a claim: the lock and what it belongs to, the names of nodes, and whether
// a saved plan is of these files. It runs before the claim is looked for: a mistake in these must not cost another
// run its claim.
func (w *work) known() (schematics.Lock, error) {
	lock, err := w.Lock()
	if err != nil {
		return lock, err
	}
	wanted := w.Wanted(lock)
	if err := w.o.Policy.Check(wanted); err != nil {
		return lock, err
	}
	if w.node != "" {
		if err := (planning.Policy{Only: []string{w.node}}).Check(wanted); err != nil {
			return lock, fault.WithHint(err, "a node stays in recast.yaml until it is removed")
		}
	}
	if w.o.Saved != nil {
		if _, differs, err := w.ofOtherFiles(lock, *w.o.Saved); differs {
			return lock, err
		}
	}
	_, err = w.History(lock)
	return lock, err
}

// requireRun refuses a --run that names no run of a parked disk. While VMs can't be read, the plan decides.
func (w *work) requireRun(vms []cluster.VM, away *cluster.HostsAway) error {
	if w.o.Undo.Run == "" || away != nil {
		return nil
	}
	parkings, err := parking.Readable(vms, w.Config.Cluster)
	if err != nil {
		return err
	}
	return w.undone().CheckRun(parkings)
}

// requireWayBack refuses nodes that the user named for undo and that have nothing parked. It runs before a claim is
// watched.
func (w *work) requireWayBack(vms []cluster.VM, away *cluster.HostsAway) error {
	if len(w.back) == 0 || away != nil {
		return nil
	}
	parkings, err := parking.Readable(vms, w.Config.Cluster)
	for _, node := range w.back {
		there := func(p parking.Parking) bool {
			return p.Record.Node == node && (p.Record.Open || slices.ContainsFunc(p.Record.Kept, func(k parking.KeptDisk) bool { return !k.GivenUp && !k.Removed }))
		}
		if err == nil && !slices.ContainsFunc(parkings, there) {
			err = fault.WithHint(fault.NoWayBack.Refusedf("node %s: no replacement of it is unfinished, and no earlier system disk of it is parked", node), "recast status says what is unfinished")
		}
	}
	return err
}

// requireReady checks the rest before a claim is watched that may be another run's: that somebody can be asked, that
// servers accept the credentials, that a node has these labels, and that the machine configurations of the selected
// nodes can be read. If nobody holds the claim, the plan shows the same problems. out says that a control plane may be
// out of service.
func (w *work) requireReady(ctx context.Context, out bool) error {
	if w.o.MayAsk != nil {
		if err := w.o.MayAsk(); err != nil {
			return err
		}
	}
	if w.o.Policy.Bootstrap == "" && !w.restores { // otherwise there may be no Kubernetes to ask
		if err := w.requireAnswers(ctx, out); err != nil {
			return err
		}
	}
	if w.machines.MachineConfig == nil || !slices.Contains([]string{"roll", "bootstrap", "rebuild"}, w.command) {
		return nil // the other commands need no files
	}
	for _, name := range nodeNames(w.Config) {
		if !w.o.Policy.Selects(name) {
			continue
		}
		if _, _, err := w.machines.MachineConfig(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// requireAnswers fails if Kubernetes or Talos refuses the credentials, or if no node has the labels. A server that
// does not answer proves nothing: the other run may have taken it down. Nor does another certificate at a control
// plane's address, if one may be out of service: its machine may be in maintenance mode.
func (w *work) requireAnswers(ctx context.Context, out bool) error {
	ctx, cancel := context.WithTimeout(ctx, askKubernetes)
	defer cancel()
	nodes, errKube := w.machines.Kube.Nodes(ctx)
	_, errTalos := w.machines.Talos.Members(ctx)
	for _, err := range []error{errKube, errTalos} {
		codes := fault.Codes(err)
		if slices.Contains(codes, fault.Credentials) || slices.Contains(codes, fault.TLS) && !out {
			return err
		}
	}
	if errKube != nil {
		return nil //nolint:nilerr // see above
	}
	names := nodeNames(w.Config)
	return w.o.Policy.CheckLabels(slices.DeleteFunc(nodes, func(n cluster.KubeNode) bool { return !slices.Contains(names, n.Name) || !w.o.Policy.Selects(n.Name) }))
}

// ofOtherFiles says whether a saved plan is of another recast.yaml or lock, and returns the result of following that
// plan.
func (w *work) ofOtherFiles(lock schematics.Lock, saved planning.Plan) (planning.Plan, bool, error) {
	is := w.Config.Hash()
	if saved.Config == is && saved.Lock == lock.Pinned() && saved.Cluster == w.Config.Cluster {
		return planning.Plan{}, false, nil
	}
	now := planning.Plan{Cluster: w.Config.Cluster, Lock: lock.Pinned(), Config: is}
	plan, err := now.Follow(saved, false) // another configuration can't tell which nodes exist
	return plan, true, err
}

type RollOptions struct {
	Policy planning.Policy
	// Undo selects what to undo, besides the nodes that Policy names; Order and Say may be nil.
	Undo planning.Undone
	// Saved is a saved plan; nil: roll every stale node. Begun: a run of the saved plan has begun, whatever the
	// journal says.
	Saved *planning.Plan
	Begun bool
	// Confirm is called with every plan before anything is taken down. Its error, or false, ends the roll.
	Confirm func(planning.Plan) (bool, error)
	// Vouch asks a person whether the certificate of a node's machine is the one on its console; nil: nobody can be asked.
	Vouch func(planning.NodePlan) bool
	// RunID makes the ID of a new run; nil: journal.NewRunID.
	RunID func() (string, error)
	// JournalSync is journal.Options.Sync; nil in production.
	JournalSync func(point string) error
	// Notify is called when the run starts and ends; may be nil.
	Notify cluster.Notifier
	// Began is called with each run whose journal is opened, its own and those that it
	// finishes first, and the journal's directory. May be nil.
	Began func(run, dir string)
	// Holder is this process, for the claim; Dead says whether another process of this machine has ended, nil: never
	// known.
	Holder claim.Holder
	Dead   func(claim.Holder) bool
	// Suspended says whether another process is stopped on this machine (Ctrl-Z); nil: never known.
	Suspended func(claim.Holder) bool
	// MayAsk returns an error if nobody could answer a question. If MayAsk or its result is nil, somebody can be asked.
	MayAsk func() error
	// Pulsed is called from time to time with the state of Kubernetes and etcd; may be nil.
	Pulsed func(planning.Pulse)
	// Origin is for history and reports.
	Origin past.Origin
	// Rehearse tests the boot ISOs before the first node; nil: as in roll.rehearse.enabled.
	Rehearse *bool
	// Rebuild has the snapshot with which the etcd of a broken cluster begins again; see Policy.Rebuild.
	Rebuild etcd.Source
}

// newRunID creates the ID of a run. With a saved plan, it ends with digits of the plan's ID.
func (o RollOptions) newRunID() (string, error) {
	newID := o.RunID
	if newID == nil {
		newID = func() (string, error) { return journal.NewRunID(time.Now(), rand.Reader) }
	}
	id, err := newID()
	if err == nil && o.Saved != nil {
		id += o.Saved.RunSuffix()
	}
	return id, err
}

func (o RollOptions) began(j *journal.Journal) {
	if o.Began != nil {
		o.Began(j.Run(), j.Dir())
	}
}
