package pipeline

import (
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
	planKey  = "plan"
	fatesKey = "fates"
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

// keepFates notes what has become of the nodes of the plan that was carried out.
func (w *work) keepFates(j *journal.Journal) error {
	var mine []string
	for _, n := range w.rep.Plan.Work() {
		mine = append(mine, n.Node)
	}
	f := w.tally.fates(mine)
	other := func(name string) bool { return !slices.Contains(mine, name) }
	f.Done, f.Failed, f.Left = slices.DeleteFunc(f.Done, other), slices.DeleteFunc(f.Failed, other), slices.DeleteFunc(f.Left, other)
	return j.Put(fatesKey, f)
}
