package pipeline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
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
	if w.rep.Plan.Run == "" && !w.o.Policy.SurgeEnds { // a plan of this run; it may follow that of reset machines
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

// keepFates records the results for the nodes of the plan that was carried out, and keeps
// those for other nodes of the run.
func (w *work) keepFates(j *journal.Journal) error {
	var mine []string
	for _, n := range w.rep.Plan.Work() {
		mine = append(mine, n.Node)
	}
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

// asBefore moves nodes that were put back from done to left: they are in their state from
// before the run, not in the wanted one.
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

// fatesBefore returns the results for a run's nodes before the run was continued: as
// recorded, or, if that process was killed, by which nodes have a recorded duration.
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

// listen makes the tally see every event; the returned func ends that.
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
	for _, name := range planned {
		if last[name] == nil {
			f.Left = append(f.Left, name)
		}
	}
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

// took is how long the turn of a node has taken.
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

// forgetRuns asks which runs are needed only where there are too many.
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

// forgetConfigs deletes machine configurations from the journals of earlier runs, for nodes
// that have a configuration again: a run that was killed, or failed before it took a node
// down, could not delete them.
func (w *work) forgetConfigs() {
	var keys []string
	for _, node := range w.rep.Plan.Configured() {
		keys = append(keys, roll.MachineConfigKey(node))
	}
	if err := journal.Forget(w.Runs().Dir, keys, w.o.JournalSync); err != nil {
		w.run.Note("roll", "machine configurations of earlier runs were not deleted from "+w.Runs().Dir+": "+err.Error())
	}
}

// forgetOfDone deletes from a journal the machine configurations of nodes that this run
// has finished.
func (w *work) forgetOfDone(j *journal.Journal) error {
	var mine []string
	for _, n := range w.rep.Plan.Work() {
		mine = append(mine, n.Node)
	}
	var errs []error
	for _, node := range w.tally.fates(mine).Done {
		errs = append(errs, j.Delete(roll.MachineConfigKey(node)))
	}
	return errors.Join(errs...)
}
