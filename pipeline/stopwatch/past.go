package stopwatch

import (
	"errors"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/journal"
)

// pastRuns is how many runs are read for durations.
const pastRuns = 50

// Past returns the durations of nodes in earlier runs, newest first. dir is that of the runs.
func Past(dir string) ([]cluster.Took, error) {
	runs, err := journal.Runs(dir)
	if err != nil {
		return nil, err
	}
	var all []cluster.Took
	var errs []error
	for _, info := range runs[:min(pastRuns, len(runs))] {
		took, err := In(dir, info.ID)
		all, errs = slices.Concat(all, took), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// In returns the durations of nodes in one run.
func In(dir, run string) (all []cluster.Took, err error) {
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
