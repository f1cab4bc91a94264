package story

import (
	"errors"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/journal"
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
