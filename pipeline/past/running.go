package past

import (
	"path/filepath"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/journal"
)

// Running is a run that has not ended according to its journal on this machine: it is
// active or was killed.
type Running struct {
	ID      string
	Dir     string // of its journal and its log
	Started time.Time
	Plan    *planning.Plan // nil: there is none yet
}

// Running finds the newest run, if it was started on this machine and has not ended.
func (r Runs) Running() (Running, bool, error) {
	runs, err := journal.Runs(r.Dir)
	if len(runs) == 0 || !runs[0].Unfinished() {
		return Running{}, false, err
	}
	now := Running{ID: runs[0].ID, Dir: filepath.Join(r.Dir, runs[0].ID), Started: runs[0].Started}
	j, err := journal.Open(r.Dir, journal.Options{Run: now.ID, ReadOnly: true})
	if err != nil {
		return Running{}, false, err
	}
	defer j.Close()
	var plan planning.Plan
	found, err := j.Get(PlanKey, &plan)
	if found {
		now.Plan = &plan
	}
	return now, err == nil, err
}

// Outcome says how a run that was started here ended; "" while it is active.
func (r Runs) Outcome(run string) (outcome string, err error) {
	runs, err := journal.Runs(r.Dir)
	for _, info := range runs {
		if info.ID == run && !info.Unfinished() {
			return info.Outcome, nil
		}
	}
	return "", err
}
