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
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/internal/fault"
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
	if w.rep.Plan.Run == "" && !w.o.Policy.SurgeEnds { // this run's own plan; it may follow a plan for reset machines
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

// keepFates records the results for the nodes of the plan that was carried out, and keeps the results for the run's
// other nodes.
func (w *work) keepFates(j *journal.Journal) error {
	mine := cluster.Each(w.rep.Plan.Work(), nodeOf)
	f := w.tally.fates(mine)
	var before cluster.Fates
	if w.rep.Plan.Run != "" || w.o.Policy.SurgeEnds { // see keepPlan
		before = fatesBefore(j)
		f = asBefore(f, w.rep.Plan, j)
	}
	merge := func(before, now []string) []string {
		before = slices.DeleteFunc(before, func(name string) bool { return slices.Contains(mine, name) })
		now = slices.DeleteFunc(now, func(name string) bool { return !slices.Contains(mine, name) })
		all := slices.Concat([]string{}, before, now)
		slices.Sort(all)
		return all
	}
	return j.Put(past.FatesKey, cluster.Fates{
		Done: merge(before.Done, f.Done), Failed: merge(before.Failed, f.Failed), Left: merge(before.Left, f.Left),
	})
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

// listen makes the tally see every event until the returned func is called.
func (t *tally) listen(run *step.Runner) func() { return run.Listen(t.see) }

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

// keepRuns is how many finished runs are kept, with journal, log and report.
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
func (p Project) Page(run string) string {
	return filepath.Join(p.State(), "reports", run+".html")
}

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
