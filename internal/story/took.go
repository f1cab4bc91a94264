package story

import (
	"errors"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
)

// pastRuns is how many runs are read for durations.
const pastRuns = 50

// Durations returns how long nodes took in earlier runs, newest first. dir is that of the runs.
func Durations(dir string) ([]cluster.Took, error) {
	runs, err := journal.Runs(dir)
	if err != nil {
		return nil, err
	}
	var all []cluster.Took
	var errs []error
	for _, info := range runs[:min(pastRuns, len(runs))] {
		took, err := durationsIn(dir, info.ID)
		all, errs = slices.Concat(all, took), append(errs, err)
	}
	return all, errors.Join(errs...)
}

func durationsIn(dir, run string) (all []cluster.Took, err error) {
	j, err := journal.Open(dir, journal.Options{Run: run, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer j.Close()
	keys, err := j.Keys("")
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if !cluster.IsTookKey(key) {
			continue
		}
		var took cluster.Took
		if _, err := j.Get(key, &took); err != nil {
			return nil, err
		}
		all = append(all, took)
	}
	return all, nil
}

// Took is how long the turn of a planned node took, once it is done; false if the node was never away: it was
// only cleaned up.
func (t *Turn) Took(n planning.NodePlan) (took cluster.Took, measured bool) {
	if t.Away() == 0 {
		return took, false
	}
	took = cluster.Took{
		Node: n.Node, Role: n.Role, Strategy: n.Strategy, Talos: n.Drift.Talos, Expected: n.OutageSeconds,
		OutageSeconds: wholeSeconds(t.Away()), WholeSeconds: wholeSeconds(t.Ended.Sub(t.Began)),
	}
	for _, s := range t.Steps {
		if seconds := wholeSeconds(s.Ended.Sub(s.Began)); s.Status == step.Done.String() && seconds > 0 {
			if took.Steps == nil {
				took.Steps = map[string]int{}
			}
			took.Steps[t.Below(s)] = seconds
		}
	}
	return took, true
}

func wholeSeconds(d time.Duration) int { return int(d.Round(time.Second).Seconds()) }
