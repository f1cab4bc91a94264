package pipeline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// keepAbout records the description of the run, or the process that continues it.
func (w *work) keepAbout(j *journal.Journal, lock schematics.Lock) error {
	a, err := past.Fact[past.About](j, past.AboutKey)
	if err != nil {
		return nil //nolint:nilerr // another recast version wrote it: it is only information, so leave it
	}
	if a != nil {
		if w.o.Holder == a.Last() {
			return nil
		}
		a.GoneOn = append(a.GoneOn, w.o.Holder)
		return j.Put(past.AboutKey, a)
	}
	a = &past.About{
		Command: w.command, Cluster: w.Config.Cluster, By: w.o.Holder, Origin: w.o.Origin,
		Talos: lock.Talos, Lock: lock.Key(), Kubernetes: w.Config.Kubernetes.Version, Elsewhere: w.rep.Plan.Run != "",
	}
	// An error here only makes the report shorter.
	if before, found := w.Locks().Before(lock); found && !a.Elsewhere {
		a.Before, a.Was, a.Changes = before.Key(), before.Talos, schematics.Compare(before, lock)
	}
	return j.Put(past.AboutKey, a)
}

// keepPlan records the plan that is carried out. A process that continues a run plans
// only what is left, so the original plan is kept too.
func (w *work) keepPlan(j *journal.Journal) error {
	if !w.continues() { // this run's own plan; it may follow a plan for reset machines
		return j.Put(past.PlanKey, w.rep.Plan)
	}
	first, err := past.Fact[json.RawMessage](j, past.FirstPlanKey)
	begun, errBegun := past.Fact[json.RawMessage](j, past.PlanKey)
	if err == nil && errBegun == nil && first == nil && begun != nil { // a plan that can't be read is not kept
		if err := j.Put(past.FirstPlanKey, begun); err != nil {
			return err
		}
	}
	return j.Put(past.PlanKey, w.rep.Plan)
}

// continues reports whether the plan goes on with a run that has begun with another one.
func (w *work) continues() bool {
	return w.rep.Plan.Run != "" || w.o.Policy.SurgeEnds || w.moves > 0
}

// keepFates records the results for the nodes of the plan that was carried out, and keeps the results for the run's
// other nodes.
func (w *work) keepFates(j *journal.Journal) error {
	mine := cluster.Each(w.rep.Plan.Work(), nodeOf)
	f := w.tally.fates(mine)
	var before cluster.Fates
	if w.continues() {
		before = fatesBefore(j)
		f = asBefore(f, w.rep.Plan, j)
	}
	for _, list := range []*[]string{&f.Done, &f.Failed, &f.Left} {
		*list = cluster.Where(*list, func(name string) bool { return slices.Contains(mine, name) })
	}
	return j.Put(past.FatesKey, past.JoinFates(&before, &f))
}

// asBefore moves nodes that were put back from done to left: they are in their state from before the run, not in the
// wanted state.
func asBefore(f cluster.Fates, now planning.Plan, j *journal.Journal) cluster.Fates {
	begun, err := past.Fact[planning.Plan](j, past.FirstPlanKey)
	if err != nil || begun == nil {
		return f
	}
	for _, n := range now.Work() {
		wanted := slices.ContainsFunc(begun.Work(), func(b planning.NodePlan) bool { return b.Node == n.Node && b.Strategy.From() != cluster.Halfway })
		if i := slices.Index(f.Done, n.Node); i >= 0 && wanted && n.Strategy.From() == cluster.Halfway {
			f.Done, f.Left = slices.Delete(f.Done, i, i+1), append(f.Left, n.Node)
		}
	}
	return f
}

// fatesBefore returns the results for a run's nodes from before the run was continued: the recorded results, or, if
// the earlier process was killed, results derived from which nodes have a recorded duration.
func fatesBefore(j *journal.Journal) (f cluster.Fates) {
	if noted, err := past.Fact[cluster.Fates](j, past.FatesKey); err == nil && noted != nil {
		return *noted
	}
	begun, err := past.Fact[planning.Plan](j, past.FirstPlanKey)
	if err != nil || begun == nil {
		return f
	}
	for _, n := range begun.Work() {
		if took, err := past.Fact[json.RawMessage](j, cluster.TookKey(n.Node)); err == nil && took != nil {
			f.Done = append(f.Done, n.Node)
		} else {
			f.Left = append(f.Left, n.Node)
		}
	}
	return f
}

// tally is the story of a command's nodes so far.
type tally struct {
	mu   sync.Mutex
	fold story.Fold
}

func (t *tally) see(e step.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fold.See(time.Now(), e)
}

// fates returns the nodes by result; planned nodes that were not started count as left.
func (t *tally) fates(planned []string) cluster.Fates {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := map[string]*story.Turn{} // of each node
	for _, turn := range t.fold.Turns {
		if !turn.Began.IsZero() {
			last[turn.Node] = turn
		}
	}
	f := cluster.Fates{Done: []string{}, Failed: []string{}, Left: []string{}}
	for _, name := range slices.Sorted(maps.Keys(last)) {
		switch turn := last[name]; {
		case turn.IsWell():
			f.Done = append(f.Done, name)
		case turn.Status == step.Failed.String() && !turn.Interrupted:
			f.Failed = append(f.Failed, name)
		default:
			f.Left = append(f.Left, name)
		}
	}
	f.Left = append(f.Left, cluster.Where(planned, func(name string) bool { return last[name] == nil })...)
	slices.Sort(f.Left)
	return f
}

// keepDurations records in the journal how long each node of the plan takes: later plans use it as an estimate. The
// tally must listen already. The returned func ends the recording, and returns the first error of the journal.
func (w *work) keepDurations(j *journal.Journal) (end func() error) {
	nodes := map[string]planning.NodePlan{} // by path
	for _, n := range w.rep.Plan.Work() {
		if !n.Resume { // the duration of an unfinished replacement is unknown
			nodes[planning.StepPath(n.Phase, n.Node)] = n
		}
	}
	var failed error
	unlisten := w.run.Listen(func(e step.Event) {
		n, planned := nodes[e.Path]
		if !planned || e.Status != step.Done {
			return
		}
		if took, measured := w.tally.took(n); measured {
			failed = cmp.Or(failed, j.Put(cluster.TookKey(n.Node), took))
		}
	})
	return func() error {
		unlisten()
		return failed
	}
}

// took returns how long a node's latest turn took; measured is as in story.Turn.Took.
func (t *tally) took(n planning.NodePlan) (took cluster.Took, measured bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, turn := range slices.Backward(t.fold.Turns) {
		if turn.Node == n.Node && turn.Phase == string(n.Phase) {
			return turn.Took(n)
		}
	}
	return cluster.Took{}, false
}

const keepRuns = 100

// pruneRuns removes the oldest finished runs. It keeps a run that a parking VM names: its
// journal describes the disk that is kept there. If Proxmox can't be read, it keeps all.
func (w *work) pruneRuns(ctx context.Context) error {
	return forgetRuns(w.Project, func() (map[string]bool, error) {
		vms, err := w.machines.Proxmox.VMs(ctx)
		if err != nil {
			return nil, err
		}
		parkings, err := parking.Parkings(vms, w.Config.Cluster)
		needed := map[string]bool{}
		for _, p := range parkings {
			needed[p.Record.Run] = true
			for _, k := range p.Record.Kept {
				needed[k.Run] = true
			}
		}
		return needed, err
	})
}

// forgetRuns removes the oldest finished runs. It calls needed, which lists the runs to keep, only if there are too
// many.
func forgetRuns(p Project, needed func() (map[string]bool, error)) error {
	runs, err := journal.Runs(p.Runs().Dir)
	if err != nil {
		return err
	}
	runs = slices.DeleteFunc(runs, journal.RunInfo.Unfinished)
	if len(runs) <= keepRuns {
		return nil
	}
	keep, err := needed()
	if err != nil {
		return err
	}
	for _, r := range runs[keepRuns:] {
		if keep[r.ID] {
			continue
		}
		if err := journal.Remove(p.Runs().Dir, r.ID); err != nil {
			return err
		}
		if err := os.Remove(p.Page(r.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Page is the file of a run's report, which may not exist.
func (p Project) Page(run string) string { return filepath.Join(p.State(), "reports", run+".html") }

// forgetConfigs deletes machine configurations from the journals of earlier runs, for nodes that have a configuration
// again: a run that was killed, or failed before it took a node down, could not delete them.
func (w *work) forgetConfigs() {
	keys := cluster.Each(w.rep.Plan.Configured(), roll.MachineConfigKey)
	if err := journal.Forget(w.Runs().Dir, keys, w.o.JournalSync); err != nil {
		w.run.Note("roll", "machine configurations of earlier runs were not deleted from "+w.Runs().Dir+": "+err.Error())
	}
}

// forgetOfDone deletes from a journal the machine configurations of nodes that this run has finished.
func (w *work) forgetOfDone(j *journal.Journal) error {
	done := w.tally.fates(cluster.Each(w.rep.Plan.Work(), nodeOf)).Done
	return errors.Join(cluster.Each(done, func(node string) error { return j.Delete(roll.MachineConfigKey(node)) })...)
}

// explainTimeout limits the check of what a failed roll has left: a user who pressed Ctrl-C twice is waiting.
const explainTimeout = 10 * time.Second

// explain adds to the error of a roll which of its nodes are still down, what finishes them, and where their disks are.
func (w *work) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if fault.KindOf(err) == fault.Claimed {
		return fault.WithSafe(err, "this run changes nothing any more; the other run finishes what is unfinished, and every disk stays where it is until then")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTimeout)
	defer cancel()
	l := w.leftBehind(ctx)
	err = fault.WithSafe(err, w.safe(ctx, l)...)
	if len(l.out) == 0 {
		return err
	}
	return fault.WithNext(err, "still unfinished, cordoned or down: %s. recast roll continues, recast status explains it", strings.Join(l.out, ", "))
}

// left is what a failed roll has left, as far as it can be read.
type left struct {
	vms    []cluster.VM
	away   *cluster.HostsAway
	unread error // why Proxmox could not be read
	open   []parking.Parking
	out    []string // the plan's nodes with an open record or our mark
}

func (w *work) leftBehind(ctx context.Context) left {
	var l left
	l.vms, l.away, l.unread = readable(ctx, w.Project, w.machines.Proxmox) // the error to explain may be that Proxmox does not answer
	parkings, err := parking.Parkings(l.vms, w.Config.Cluster)             // those that can be read
	l.unread = errors.Join(l.unread, err)
	nodes, _ := w.machines.Kube.Nodes(ctx) // with a single control plane the API may be down
	for _, n := range w.rep.Plan.Work() {
		i := slices.IndexFunc(parkings, func(p parking.Parking) bool { return p.Record.Node == n.Node && p.Record.Open })
		if i >= 0 {
			l.open = append(l.open, parkings[i])
		}
		if i >= 0 || slices.ContainsFunc(nodes, func(k cluster.KubeNode) bool { return k.Name == n.Node && k.Mark != nil }) {
			l.out = append(l.out, n.Node)
		}
	}
	return l
}

// safe says where the disks of each unfinished node are, and that the others have theirs.
func (w *work) safe(ctx context.Context, l left) []string {
	if l.unread != nil && len(l.open) == 0 {
		return []string{"no persistent disk was freed; where each one is could not be read: recast status shows it when Proxmox answers"}
	}
	var lines []string
	for _, park := range l.open {
		h, err := half(ctx, w.machines.Proxmox, park, l.vms, l.away)
		if err != nil {
			lines = append(lines, fmt.Sprintf("%s: none of its disks was freed; its record is on parking VM %d", park.Record.Node, park.VM.ID))
			continue
		}
		lines = append(lines, h.safe())
	}
	fates := w.tally.fates(w.planned())
	for _, group := range []struct {
		nodes []string
		say   string
	}{{fates.Done, "finished, with all their disks"}, {slices.Concat(fates.Failed, fates.Left), "every disk is in its place"}} {
		names := slices.DeleteFunc(slices.Clone(group.nodes), func(node string) bool {
			return slices.ContainsFunc(l.open, func(p parking.Parking) bool { return p.Record.Node == node })
		})
		if sure := l.unread == nil && l.away == nil; len(names) > 0 && sure {
			lines = append(lines, strings.TrimSpace(named("", names))+": "+group.say)
		}
	}
	if l.away != nil {
		lines = append(lines, "no persistent disk was freed; Proxmox hosts that do not answer could not be read")
	}
	return lines
}

// safe says where the disks of an unfinished replacement are, in one sentence.
func (h Half) safe() string {
	places := map[DiskPlace][]string{}
	for _, d := range h.Disks {
		what := d.Disk
		switch {
		case d.Kept:
			what += " (the kept system disk)"
		case d.System:
			what += " (the old system disk)"
		}
		places[d.Place] = append(places[d.Place], what)
	}
	var parts []string
	for _, at := range []struct {
		place DiskPlace
		say   string
	}{
		{OnVM, fmt.Sprintf("on VM %d", h.VMID)},
		{OnParking, fmt.Sprintf("parked on VM %d, which nothing starts or deletes", h.Parking)},
		{Detached, "with the VM that owns it"},
		{Unnamed, "on its storage, for the moment without an owner: it is in the record, and recast roll finds it"},
		{Lost, "not where the record says: run recast status first"},
	} {
		if disks := places[at.place]; len(disks) > 0 {
			parts = append(parts, strings.Join(disks, ", ")+" "+at.say)
		}
	}
	text := fmt.Sprintf("%s: VM %d (%s); ", h.Node, h.VMID, h.VM) + strings.Join(parts, "; ")
	if len(places[Lost]) == 0 {
		text += ": nothing is lost"
	}
	return text
}

// endSurge removes the surge nodes that the plan has used, now that its last worker is back. The plan showed the
// removal, so the user is not asked again.
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

// surgeStays adds a hint to the error of a failed roll: what becomes of the surge nodes that are there.
func (w *work) surgeStays(err error) error {
	if s := w.rep.Plan.Surge; w.began && s != nil && len(s.Nodes) > 0 {
		return fault.WithHint(err, "%s", planning.SurgeStays(s.Nodes))
	}
	return err
}

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

// undone returns RollOptions.Undo, completed with Order and Say, which only a running command knows.
func (w *work) undone() planning.Undone {
	u := w.o.Undo
	u.Order, u.Say = w.Runs().Order, func(text string) { w.run.Note("undo", text) }
	return u
}

// begin starts a confirmed plan: it runs the hooks before the run, once per command, however many plans follow.
func (w *work) begin(ctx context.Context, j *journal.Journal) error {
	w.nodes = w.planned()
	if w.began {
		w.hooks.journal = j.Run()
		return nil
	}
	w.began, w.hooks.journal, w.hooks.of = true, j.Run(), w.rep.Plan.Hooks
	w.tellStart(ctx)
	return w.callHooks(ctx, w.run, roll.HookCall{
		Point: cluster.BeforeRun, Keep: func(run planning.HookRun, i int) error { return w.keepHook(j, run, i) },
	}, "before-run", "run the hooks before the run", roll.BeforeRunFailed)
}

// afterInterrupt is the time for the hooks after a run when Ctrl-C was pressed for the second time.
const afterInterrupt = 30 * time.Second

// hooksAfter runs the hooks after the run, with any result. If they fail, the run fails, but
// an earlier failure is never hidden.
func (w *work) hooksAfter(ctx context.Context, err error) error {
	if !w.began || len(w.hooks.of.AfterRun) == 0 {
		return err
	}
	if w.claim.held != nil && w.claim.held.Lost() != nil { // the hooks might undo something that another run relies on
		return fault.WithHint(err, "the hooks after the run were not run, as another run may be active: do by hand what they had to do, when that has ended")
	}
	within, cancel := graceful(ctx, afterInterrupt)
	defer cancel(nil)
	// A stopped Runner starts no steps.
	run := &step.Runner{Emit: w.run.Tell}
	failed := w.callHooks(within, run, roll.HookCall{
		Point: cluster.AfterRun, Env: w.hookEnv(err), Keep: w.keepLastHook,
	}, "after-run", "run the hooks after the run", func(_ context.Context, err error) error {
		return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Failed, err)), "the next run does not repeat the hooks of this one: do by hand what they had to do")
	})
	if failed == nil {
		return err
	}
	noted := w.noteFailed(failed)
	if err == nil {
		return errors.Join(fmt.Errorf("every node is done: %w", failed), noted)
	}
	return fault.As(fault.KindOf(err), errors.Join(err, failed, noted))
}

// noteFailed records in the last journal that the run failed after its nodes, unless the journal has a worse result.
func (w *work) noteFailed(failed error) error {
	j, err := journal.Open(w.Runs().Dir, journal.Options{Run: w.hooks.journal, Sync: w.o.JournalSync})
	if err != nil {
		return err
	}
	defer j.Close()
	info, err := j.Info()
	if err != nil || info.Outcome != outcome(nil) {
		return err
	}
	return j.Finish(outcome(fmt.Errorf("every node is done: %w", failed)))
}

// graceful returns a context that ends when ctx has ended and grace has passed.
func graceful(ctx context.Context, grace time.Duration) (context.Context, context.CancelCauseFunc) {
	within, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, func() { cancel(context.Cause(ctx)) })
		context.AfterFunc(within, func() { timer.Stop() })
	})
	return within, func(cause error) { stop(); cancel(cause) }
}

func (w *work) callHooks(ctx context.Context, run *step.Runner, c roll.HookCall, id, title string, failed func(context.Context, error) error) error {
	c.Commands, c.Say = w.machines.Commands, func(text string) { run.Note(id, text) }
	c.Env = append(c.Env, "RECAST_CLUSTER="+w.Config.Cluster, "RECAST_RUN="+w.claim.id, "RECAST_NODES="+strings.Join(w.planned(), " "))
	for _, s := range c.Step(id, title, w.hooks.of.At(c.Point), failed) {
		s.Yields = c.Point == cluster.BeforeRun
		return run.Run(ctx, s)
	}
	return nil
}

// planned returns the nodes of all started plans and the current one, each once, in the order of the plans.
func (w *work) planned() []string {
	names := slices.Clone(w.nodes)
	for _, n := range w.rep.Plan.Work() {
		if !slices.Contains(names, n.Node) {
			names = append(names, n.Node)
		}
	}
	return names
}

func (w *work) hooked(run planning.HookRun) {
	w.tally.mu.Lock()
	defer w.tally.mu.Unlock()
	w.rep.Hooks = append(w.rep.Hooks, run)
}

func (w *work) keepHook(j *journal.Journal, run planning.HookRun, i int) error {
	w.hooked(run)
	return j.Put("hooks/"+strings.ToLower(string(run.Point))+"/"+strconv.Itoa(i+1), run)
}

func (w *work) keepLastHook(run planning.HookRun, i int) error {
	j, err := journal.Open(w.Runs().Dir, journal.Options{Run: w.hooks.journal, Sync: w.o.JournalSync})
	if err != nil {
		w.hooked(run)
		return err
	}
	defer j.Close()
	return w.keepHook(j, run, i)
}

func (w *work) hookEnv(err error) []string {
	f := w.tally.fates(w.planned())
	return []string{
		"RECAST_OUTCOME=" + outcomeWord(err), "RECAST_ERROR=" + oneLine(err), "RECAST_NODES_DONE=" + strings.Join(f.Done, " "),
		"RECAST_NODES_FAILED=" + strings.Join(f.Failed, " "), "RECAST_NODES_LEFT=" + strings.Join(f.Left, " "),
	}
}

// outcomeWord is the result of the run for programs: "done", "failed" or "interrupted".
func outcomeWord(err error) string {
	word, _, _ := strings.Cut(outcome(err), ":")
	return word
}

// errorBytes limits the length of an error in the environment.
const errorBytes = 4 << 10

func oneLine(err error) string {
	if err == nil {
		return ""
	}
	text := strings.Join(strings.Fields(foreign.Line(err.Error())), " ")
	return strings.ToValidUTF8(text[:min(len(text), errorBytes)], "")
}

type notices struct {
	under  sync.WaitGroup          // notices in flight
	giveUp context.CancelCauseFunc // cancels the start notice; nil: none was sent
	mu     sync.Mutex
	lost   []error
}

// How long both notices together may delay the end of a run.
const (
	tellWithin         = 35 * time.Second // more than three attempts of 10 s with pauses of 1 s and 3 s
	tellAfterInterrupt = 10 * time.Second // after a second Ctrl-C
	tellStartWithin    = 2 * time.Second  // for the start notice, if it is still in flight
)

var errEndedMeanwhile = errors.New("the run ended meanwhile")

// tellStart sends the start notice, and does not wait for it.
func (w *work) tellStart(ctx context.Context) {
	within, cancel := graceful(ctx, tellAfterInterrupt)
	w.told.giveUp = cancel
	w.sendNotice(within, w.notice(cluster.NoticeStart, nil))
}

// tellEnd sends the end notice after the start notice, and waits for it. A run that ended
// before it started sends only failures, and none if the user did not confirm.
func (w *work) tellEnd(ctx context.Context, err error) {
	within, cancel := graceful(ctx, tellAfterInterrupt)
	defer cancel(nil)
	defer time.AfterFunc(tellWithin, func() { cancel(fmt.Errorf("the run waits for it no longer than %s", tellWithin)) }).Stop()
	w.told.endStart()
	switch {
	case err != nil && (w.began || fault.KindOf(err) != fault.Interrupted && !errors.Is(err, context.Canceled)):
		w.sendNotice(within, w.notice(cluster.NoticeFailure, err))
	case w.began:
		w.sendNotice(within, w.notice(cluster.NoticeEnd, nil))
	}
	w.told.under.Wait()
	for _, lost := range w.told.lost {
		w.rep.Unsent = append(w.rep.Unsent, strings.Split(lost.Error(), "\n")...)
	}
}

// endStart waits shortly for the start notice, which matters little by then.
func (n *notices) endStart() {
	if n.giveUp == nil {
		return
	}
	hurry := time.AfterFunc(tellStartWithin, func() { n.giveUp(errEndedMeanwhile) })
	n.under.Wait()
	hurry.Stop()
	n.giveUp(nil)
}

func (w *work) sendNotice(within context.Context, n cluster.Notice) {
	if w.o.Notify == nil || w.command == "" {
		return
	}
	w.told.under.Go(func() {
		if err := w.o.Notify.Notify(within, n); err != nil {
			w.told.mu.Lock()
			defer w.told.mu.Unlock()
			w.told.lost = append(w.told.lost, err)
		}
	})
}

func (w *work) notice(event cluster.NoticeEvent, err error) cluster.Notice {
	n := cluster.Notice{
		Event: event, Command: w.command, Cluster: w.Config.Cluster, Run: w.rep.Run,
		Nodes: w.tally.fates(w.planned()), Hints: hintLines(err), Started: w.rep.Started, Host: w.o.Holder.Host,
	}
	if event != cluster.NoticeStart {
		n.Ended, n.Outcome = w.rep.Ended, outcomeWord(err)
	}
	if err != nil {
		n.Error = foreign.Lines(err.Error())
	}
	n.Text = noticeText(n)
	return n
}

// hintLines returns the hints of an error, never nil: templates range over them.
func hintLines(err error) []string {
	return append([]string{}, cluster.Each(fault.Hints(err), foreign.Lines)...)
}

func noticeText(n cluster.Notice) string {
	text := fmt.Sprintf("recast %s of %s", n.Command, n.Cluster)
	if n.Event == cluster.NoticeStart {
		return text + " has started" + named(", to do: ", n.Nodes.Left)
	}
	text += fmt.Sprintf(": %s after %s", n.Outcome, n.Ended.Sub(n.Started).Round(time.Second))
	text += named("; done: ", n.Nodes.Done) + named("; failed: ", n.Nodes.Failed) + named("; left: ", n.Nodes.Left)
	if n.Error != "" {
		text += "; " + oneLine(errors.New(n.Error))
	}
	return text
}

func named(label string, nodes []string) string {
	const few = 5
	switch {
	case len(nodes) == 0:
		return ""
	case len(nodes) > few:
		return fmt.Sprintf("%s%d nodes", label, len(nodes))
	}
	return label + strings.Join(nodes, ", ")
}

type claiming struct {
	Project
	machines Machines
	o        RollOptions
	say      func(text string)

	held    *claim.Held // nil: not taken
	id      string      // of the run that holds it
	inLease *bool       // the claim is kept in Kubernetes; nil: not known yet
}

// take takes the claim at the first call; host is where to create its VM if there is
// none. Later calls add the VMs of the plan to it.
func (c *claiming) take(ctx context.Context, host string, plan planning.Plan) error {
	nodes := c.NodeVMs(plan)
	if c.held != nil {
		return c.held.Cover(ctx, nodes)
	}
	inLease, err := c.keptInLease(ctx)
	if err != nil {
		return err
	}
	if inLease { // otherwise Acquire needs to see every VM anyway
		if err := survey.NeedsToSee().Check(ctx, c.machines.Proxmox); err != nil {
			return err
		}
	}
	id, err := c.o.newRunID()
	if err != nil {
		return err
	}
	wanted := &claim.Claim{
		Proxmox: c.machines.Proxmox, Cluster: c.Config.Cluster, VMID: c.ClaimID(), VMIDs: c.VMIDs(), Nodes: nodes,
		Host: host, Holder: c.o.Holder, Run: id,
		Leases: c.machines.Leases, InLease: inLease, Dead: c.o.Dead, Suspended: c.o.Suspended, Say: c.say,
	}
	c.id = id
	c.held, err = wanted.Acquire(ctx)
	return err
}

// judged returns err, or the claim's error if the claim was lost meanwhile.
func (c *claiming) judged(err error) error {
	if c.held == nil {
		return err
	}
	return c.held.Judge(err)
}

// whileHeld returns a context that ends when a claim that was taken is lost.
func (c *claiming) whileHeld(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.held == nil {
		return ctx, func() {}
	}
	return c.held.Within(ctx)
}

// store is the machines' Store, which stores files only while the claim is ours.
func (c *claiming) store() images.Store {
	s := c.machines.Store
	return claimedStore{Users: s, Reacher: s, Storages: s, Finder: s, store: s, write: c.held.Write}
}

// claimedStore embeds only interfaces that read: without a method for each change, it does not compile.
type claimedStore struct {
	images.Users
	images.Reacher
	images.Storages
	images.Finder
	store images.Store
	write images.Write
}

func (s claimedStore) Upload(ctx context.Context, u images.Upload) error {
	return s.send(ctx, func(ctx context.Context) error { return s.store.Upload(ctx, u) })
}

func (s claimedStore) Download(ctx context.Context, d images.Download) error {
	return s.send(ctx, func(ctx context.Context) error { return s.store.Download(ctx, d) })
}

func (s claimedStore) send(ctx context.Context, change func(context.Context) error) error {
	sent := false
	err := s.write(ctx, func(ctx context.Context) error { sent = true; return change(ctx) })
	if err != nil && !sent {
		return fmt.Errorf("%w: %w", images.ErrNotSent, err)
	}
	return err
}

func (c *claiming) found(ctx context.Context, vms []cluster.VM) (claim.State, bool, error) {
	s, found, err := claim.Peek(vms, c.Config.Cluster, c.ClaimID())
	switch {
	case err != nil:
		return s, false, err
	case found:
		return s, true, cluster.RequireQuorum(ctx, c.machines.Proxmox) // needed to write it
	}
	s, found, err = claim.PeekLease(ctx, c.machines.Leases.Lease, c.Config.Cluster)
	if fault.KindOf(err) != fault.Refused {
		err = nil // the API may be down with its only control plane; taking the claim checks again
	}
	return s, found, err
}

// keptInLease says whether the claim is kept in Kubernetes, because the token may not create a VM for it.
func (c *claiming) keptInLease(ctx context.Context) (bool, error) {
	if c.inLease == nil {
		missing, err := survey.NeedsToClaim().Missing(ctx, c.machines.Proxmox)
		if err != nil {
			return false, err
		}
		c.inLease = new(len(missing.Lacks) > 0)
	}
	return *c.inLease, nil
}

// leaseServes refuses a plan that could be undone only with a claim in Proxmox, if the claim is a Lease.
func (c *claiming) leaseServes(inLease bool, plan planning.Plan) error {
	const grant = "recast doctor says what the token lacks"
	switch {
	case !inLease:
		return nil
	case c.Config.Roll.BootFailure == string(cluster.ReimageOnBootFailure):
		return fault.WithHint(fault.PlanRefused.Refusedf("a node that does not come back could not be reimaged: the Proxmox token may not create VMs"),
			"roll.bootFailure: rollback does not need that; "+grant)
	case plan.TakesAPIAway():
		return fault.WithHint(fault.PlanRefused.Refusedf("the Proxmox token may not create VMs, so the claim would be a Lease, which is lost with the only control plane: if that does not come back, it could not be rolled back"),
			grant+"; with the privileges for a claim in Proxmox the node can be upgraded")
	}
	return nil
}

// Claim reads the claim in Proxmox, with any VMID; found is false if there is none.
func (p Project) Claim(ctx context.Context, px cluster.VMReader) (c claim.State, found bool, err error) {
	vm, err := px.VMConfig(ctx, p.ClaimID())
	switch {
	case err == nil:
		return claim.Peek([]cluster.VM{vm}, p.Config.Cluster, p.ClaimID())
	case !errors.Is(err, cluster.ErrNotFound):
		return claim.State{}, false, err
	}
	vms, err := px.VMs(ctx)
	if _, away := errors.AsType[*cluster.HostsAway](err); err != nil && !away {
		return claim.State{}, false, err
	}
	return claim.Peek(vms, p.Config.Cluster, p.ClaimID())
}

// Listing is what Watched needs from Proxmox besides an Inventory.
type Listing interface {
	cluster.Inventory
	// Listed lists every VM with one request: without configurations, and about 10 s late.
	Listed(ctx context.Context) ([]cluster.VM, error)
}

// Watched is an Inventory for repeated reads by a live view: it reads again only VMs that are new or whose row in the
// list has changed, the claim, and both VMs of unfinished replacements. It counts its requests.
type Watched struct {
	Listing
	claim cluster.VMID

	rows     map[cluster.VMID]cluster.VM // from the last list
	known    map[cluster.VMID]cluster.VM // as last read
	requests int
}

func (p Project) Watched(px Listing) *Watched { return &Watched{Listing: px, claim: p.ClaimID()} }

// Requests is the approximate number of requests since the last call.
func (w *Watched) Requests() int {
	n := w.requests
	w.requests = 0
	return n
}

// VMs implements cluster.VMReader. If it would have to read many VMs, it reads all.
func (w *Watched) VMs(ctx context.Context) ([]cluster.VM, error) {
	listed, err := w.Listed(ctx)
	w.requests++
	if err != nil {
		return nil, err
	}
	rows := map[cluster.VMID]cluster.VM{}
	for _, row := range listed {
		rows[row.ID] = row
	}
	was, known := w.rows, w.known
	w.rows, w.known = rows, map[cluster.VMID]cluster.VM{}
	if known == nil {
		return w.all(ctx)
	}
	var vms []cluster.VM
	worked := w.workedOn(known)
	for _, row := range listed {
		vm, ok := known[row.ID]
		if old := was[row.ID]; !ok || worked[row.ID] || old.Name != row.Name || old.Host != row.Host || old.Running != row.Running {
			vm, err = w.Listing.VMConfig(ctx, row.ID)
			w.requests++
		}
		switch {
		case errors.Is(err, cluster.ErrNotFound):
			err = nil
			continue
		case err != nil:
			return w.all(ctx)
		}
		vm.Pool, vm.Running, vm.HA = row.Pool, row.Running, row.HA
		w.known[vm.ID] = vm
		vms = append(vms, vm)
	}
	slices.SortFunc(vms, func(a, b cluster.VM) int { return cmp.Compare(a.ID, b.ID) })
	return vms, nil
}

func (w *Watched) all(ctx context.Context) ([]cluster.VM, error) {
	vms, err := w.Listing.VMs(ctx)
	w.requests += 2 + len(vms)
	w.known = nil
	if err == nil {
		w.known = map[cluster.VMID]cluster.VM{}
		for _, vm := range vms {
			w.known[vm.ID] = vm
		}
	}
	return vms, err
}

// workedOn returns the claims, and the VMs and parking VMs of unfinished replacements.
func (w *Watched) workedOn(known map[cluster.VMID]cluster.VM) map[cluster.VMID]bool {
	worked := map[cluster.VMID]bool{w.claim: true}
	for _, vm := range known {
		if survey.IsClaim(vm) {
			worked[vm.ID] = true
		}
		if rec, ok, err := parking.ReadRecord(vm); ok && (err != nil || rec.Open) {
			worked[vm.ID], worked[rec.VMID] = true, true
		}
	}
	return worked
}

func (w *Watched) VM(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	w.requests += 2
	return w.Listing.VM(ctx, id)
}

func (w *Watched) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	w.requests++
	return w.Listing.VMConfig(ctx, id)
}

func (w *Watched) OwnedVolumes(ctx context.Context, host, storage string, owner cluster.VMID) ([]string, error) {
	w.requests++
	return w.Listing.OwnedVolumes(ctx, host, storage, owner)
}
