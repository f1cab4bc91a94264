package pipeline

import (
	"encoding/json"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/journal"
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
