package pipeline

import (
	"encoding/json"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/schematics"
)

// About is what a run is about: kept in its journal for whoever looks back at it.
type About struct {
	Command string         `json:"command"` // "roll", "rollback", "recover"
	Cluster string         `json:"cluster"` // its name
	By      cluster.Holder `json:"by"`      // the process that began it
	// Elsewhere says that it was begun on another machine, which knows how, and By only finished it.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// GoneOn are the processes that went on with it.
	GoneOn []cluster.Holder `json:"goneOn,omitempty"`
	Recast string           `json:"recast,omitempty"` // version
	Talos  string           `json:"talos"`            // of the lock that it was begun with
	Lock   string           `json:"lock"`             // hash of what that pins
	// Before is the lock before that, where one is known, and Changes what it said otherwise.
	Before  string              `json:"before,omitempty"`
	Was     string              `json:"was,omitempty"` // its version of Talos
	Changes []schematics.Change `json:"changes,omitempty"`
	// Kubernetes is the version that the configuration asks for.
	Kubernetes string `json:"kubernetes,omitempty"`
}

// The keys of a run's journal of what is told of it later.
const (
	aboutKey = "about"
	planKey  = "plan" // that is carried out, or was last
	fatesKey = "fates"

	// firstPlanKey has the plan that the run was begun with, once somebody goes on with it.
	firstPlanKey = "plan/first"
)

// keepAbout notes what the run is about, or who goes on with it.
func (w *work) keepAbout(j *journal.Journal, lock schematics.Lock) error {
	a, err := fact[About](j, aboutKey)
	if err != nil {
		return nil //nolint:nilerr // another recast wrote it: nothing is done by it, so that it stays as it is
	}
	if a != nil {
		if w.o.Holder == a.last() {
			return nil
		}
		a.GoneOn = append(a.GoneOn, w.o.Holder)
		return j.Put(aboutKey, a)
	}
	a = &About{
		Command: w.command, Cluster: w.Config.Cluster, By: w.o.Holder, Recast: w.o.Version,
		Talos: lock.Talos, Lock: lock.Key(), Kubernetes: w.Config.Kubernetes.Version, Elsewhere: w.rep.Plan.Run != "",
	}
	// Without it the report says less; a roll does not end for that.
	if before, found, err := schematics.Previous(w.pastLocks(), lock); err == nil && found && !a.Elsewhere {
		a.Before, a.Was, a.Changes = before.Key(), before.Talos, schematics.Compare(before, lock)
	}
	return j.Put(aboutKey, a)
}

// last is the process that works on the run, or did so last.
func (a About) last() cluster.Holder {
	if n := len(a.GoneOn); n > 0 {
		return a.GoneOn[n-1]
	}
	return a.By
}

// keepPlan notes the plan that is carried out. Who goes on with a run plans only what
// is left of it, so that the one that it was begun with is kept beside that.
func (w *work) keepPlan(j *journal.Journal) error {
	if w.rep.Plan.Run == "" { // the run's own, perhaps behind that of machines that were reset
		return j.Put(planKey, w.rep.Plan)
	}
	first, err := fact[json.RawMessage](j, firstPlanKey)
	begun, errBegun := fact[json.RawMessage](j, planKey)
	if err == nil && errBegun == nil && first == nil && begun != nil { // what can't be read is not worth keeping
		if err := j.Put(firstPlanKey, begun); err != nil {
			return err
		}
	}
	return j.Put(planKey, w.rep.Plan)
}

// keepFates notes what has become of the nodes of the plan that was carried out. Of
// other nodes of the run stays what is known.
func (w *work) keepFates(j *journal.Journal) error {
	var mine []string
	for _, n := range w.rep.Plan.Work() {
		mine = append(mine, n.Node)
	}
	f := w.tally.fates(mine)
	var before cluster.Fates
	if w.rep.Plan.Run != "" { // see keepPlan
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

// asBefore counts nodes that were put back among those that are left: they are as
// they were before the run, not as it wanted them.
func asBefore(f cluster.Fates, now cluster.Plan, j *journal.Journal) cluster.Fates {
	begun, err := fact[cluster.Plan](j, firstPlanKey)
	if err != nil || begun == nil {
		return f
	}
	for _, n := range now.Work() {
		wanted := slices.ContainsFunc(begun.Work(), func(b cluster.NodePlan) bool { return b.Node == n.Node && b.Strategy != cluster.PutBack })
		if i := slices.Index(f.Done, n.Node); i >= 0 && wanted && n.Strategy == cluster.PutBack {
			f.Done, f.Left = slices.Delete(f.Done, i, i+1), append(f.Left, n.Node)
		}
	}
	return f
}

// fatesBefore is what had become of a run's nodes when somebody went on with it: as was
// noted then, or, where that process was killed, by which of them took their time.
func fatesBefore(j *journal.Journal) (f cluster.Fates) {
	if noted, err := fact[cluster.Fates](j, fatesKey); err == nil && noted != nil {
		return *noted
	}
	begun, err := fact[cluster.Plan](j, firstPlanKey)
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
