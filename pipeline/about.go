package pipeline

import (
	"encoding/json"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/schematics"
)

// Origin is where a run comes from.
type Origin struct {
	Recast string `json:"recast,omitempty"` // its version
	Who    string `json:"who,omitempty"`    // the user, or who started the pipeline
	Commit string `json:"commit,omitempty"` // of the directory with recast.yaml
}

// About describes a run. It is kept in the run's journal for history and reports.
type About struct {
	Command string       `json:"command"` // "roll", "rollback", "recover"
	Cluster string       `json:"cluster"` // its name
	By      claim.Holder `json:"by"`      // the process that started it
	// Elsewhere says that another machine started it, which has the details, and By only finished it.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// GoneOn are the processes that continued it.
	GoneOn []claim.Holder `json:"goneOn,omitempty"`
	Origin
	Talos string `json:"talos"` // of the lock that it was started with
	Lock  string `json:"lock"`  // hash of that lock
	// Before is the previous lock, if known, and Changes are the differences.
	Before  string              `json:"before,omitempty"`
	Was     string              `json:"was,omitempty"` // its version of Talos
	Changes []schematics.Change `json:"changes,omitempty"`
	// Kubernetes is the version in the configuration.
	Kubernetes string `json:"kubernetes,omitempty"`
}

// Keys of a run's journal for history and reports.
const (
	aboutKey = "about"
	fatesKey = "fates"

	PlanKey      = "plan"       // the current or last plan
	FirstPlanKey = "plan/first" // the original plan, once another process continues the run
)

// keepAbout records the description of the run, or the process that continues it.
func (w *work) keepAbout(j *journal.Journal, lock schematics.Lock) error {
	a, err := fact[About](j, aboutKey)
	if err != nil {
		return nil //nolint:nilerr // another recast version wrote it: it is only information, so leave it
	}
	if a != nil {
		if w.o.Holder == a.last() {
			return nil
		}
		a.GoneOn = append(a.GoneOn, w.o.Holder)
		return j.Put(aboutKey, a)
	}
	a = &About{
		Command: w.command, Cluster: w.Config.Cluster, By: w.o.Holder, Origin: w.o.Origin,
		Talos: lock.Talos, Lock: lock.Key(), Kubernetes: w.Config.Kubernetes.Version, Elsewhere: w.rep.Plan.Run != "",
	}
	// An error here only makes the report shorter.
	if before, found, err := schematics.Previous(w.pastLocks(), lock); err == nil && found && !a.Elsewhere {
		a.Before, a.Was, a.Changes = before.Key(), before.Talos, schematics.Compare(before, lock)
	}
	return j.Put(aboutKey, a)
}

// last is the process that works or last worked on the run.
func (a About) last() claim.Holder {
	if n := len(a.GoneOn); n > 0 {
		return a.GoneOn[n-1]
	}
	return a.By
}

// keepPlan records the plan that is carried out. A process that continues a run plans
// only what is left, so the original plan is kept too.
func (w *work) keepPlan(j *journal.Journal) error {
	if w.rep.Plan.Run == "" && !w.o.Policy.SurgeEnds { // a plan of this run; it may follow that of reset machines
		return j.Put(PlanKey, w.rep.Plan)
	}
	first, err := fact[json.RawMessage](j, FirstPlanKey)
	begun, errBegun := fact[json.RawMessage](j, PlanKey)
	if err == nil && errBegun == nil && first == nil && begun != nil { // a plan that can't be read is not kept
		if err := j.Put(FirstPlanKey, begun); err != nil {
			return err
		}
	}
	return j.Put(PlanKey, w.rep.Plan)
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
	return j.Put(fatesKey, cluster.Fates{
		Done: merge(before.Done, f.Done), Failed: merge(before.Failed, f.Failed), Left: merge(before.Left, f.Left),
	})
}

// asBefore moves nodes that were put back from done to left: they are in their state from
// before the run, not in the wanted one.
func asBefore(f cluster.Fates, now planning.Plan, j *journal.Journal) cluster.Fates {
	begun, err := fact[planning.Plan](j, FirstPlanKey)
	if err != nil || begun == nil {
		return f
	}
	for _, n := range now.Work() {
		wanted := slices.ContainsFunc(begun.Work(), func(b planning.NodePlan) bool { return b.Node == n.Node && b.Strategy != cluster.PutBack })
		if i := slices.Index(f.Done, n.Node); i >= 0 && wanted && n.Strategy == cluster.PutBack {
			f.Done, f.Left = slices.Delete(f.Done, i, i+1), append(f.Left, n.Node)
		}
	}
	return f
}

// fatesBefore returns the results for a run's nodes before the run was continued: as
// recorded, or, if that process was killed, by which nodes have a recorded duration.
func fatesBefore(j *journal.Journal) (f cluster.Fates) {
	if noted, err := fact[cluster.Fates](j, fatesKey); err == nil && noted != nil {
		return *noted
	}
	begun, err := fact[planning.Plan](j, FirstPlanKey)
	if err != nil || begun == nil {
		return f
	}
	for _, n := range begun.Work() {
		if took, err := fact[json.RawMessage](j, cluster.TookKey(n.Node)); err == nil && took != nil {
			f.Done = append(f.Done, n.Node)
		} else {
			f.Left = append(f.Left, n.Node)
		}
	}
	return f
}
