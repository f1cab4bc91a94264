package pipeline

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
)

// TakesAway says whether a step of a node's branch takes the node down. While the node is
// checked, pulls its installer, is drained and tries a configuration, it is still up.
func TakesAway(below []string) bool {
	switch below[0] {
	case "ask-gates", "await-storage", "run-hooks", "gate", "pull", "remember", "drain", "try", "stage":
		return false
	case "take-down", "upgrade":
		return len(below) > 1 && below[1] != "remember" && below[1] != "drain"
	}
	return true
}

// stopwatch measures how long each node's roll takes, and records it in the run's journal:
// later plans use it as an estimate.
type stopwatch struct {
	journal *journal.Journal
	nodes   map[string]planning.NodePlan // by path
	began   map[string]time.Time         // of steps, by path
	away    map[string]time.Time         // since when, by path of the node
	outage  map[string]time.Duration
	steps   map[string]map[string]int
	err     error // the first error of the journal
}

// watchClock makes a stopwatch see the events of a runner until unwatch is called.
func watchClock(run *step.Runner, plan planning.Plan, j *journal.Journal) (s *stopwatch, unwatch func()) {
	s = &stopwatch{
		journal: j, nodes: map[string]planning.NodePlan{}, began: map[string]time.Time{}, away: map[string]time.Time{},
		outage: map[string]time.Duration{}, steps: map[string]map[string]int{},
	}
	for _, n := range plan.Work() {
		if !n.Resume { // the duration of an unfinished replacement is unknown
			s.nodes[planning.StepPath(n.Phase, n.Node)] = n
		}
	}
	return s, run.Listen(s.see)
}

func (s *stopwatch) see(e step.Event) {
	phase, node, below := planning.NodeOfStep(e.Path)
	if node == "" || e.Status == step.Note {
		return
	}
	path := planning.StepPath(phase, node)
	n, ok := s.nodes[path]
	if !ok {
		return
	}
	if e.Status == step.Started {
		s.began[e.Path] = time.Now()
		if s.away[path].IsZero() && len(below) > 0 && TakesAway(below) {
			s.away[path] = time.Now()
		}
	}
	if len(below) == 0 && e.Status != step.Started || len(below) > 0 && planning.IsBack(below) {
		s.back(path)
	}
	switch {
	case e.Status != step.Done:
	case len(below) == 0:
		s.keep(n, path)
	default:
		s.lap(path, strings.Join(below, "/"), time.Since(s.began[e.Path]))
	}
}

// back ends the outage of a node, once.
func (s *stopwatch) back(path string) {
	if since := s.away[path]; !since.IsZero() && s.outage[path] == 0 {
		s.outage[path] = time.Since(since)
	}
}

func (s *stopwatch) lap(path, step string, took time.Duration) {
	if seconds := wholeSeconds(took); seconds > 0 {
		if s.steps[path] == nil {
			s.steps[path] = map[string]int{}
		}
		s.steps[path][step] = seconds
	}
}

func (s *stopwatch) keep(n planning.NodePlan, path string) {
	if s.outage[path] == 0 {
		return // it was only cleaned up
	}
	err := s.journal.Put(cluster.TookKey(n.Node), cluster.Took{
		Node: n.Node, Role: n.Role, Strategy: n.Strategy, Talos: n.Drift.Talos, Expected: n.OutageSeconds,
		OutageSeconds: wholeSeconds(s.outage[path]), WholeSeconds: wholeSeconds(time.Since(s.began[path])), Steps: s.steps[path],
	})
	if s.err == nil {
		s.err = err
	}
}

func wholeSeconds(d time.Duration) int { return int(d.Round(time.Second).Seconds()) }

// pastRuns is how many runs are read for durations.
const pastRuns = 50

// Took returns the durations of nodes in earlier runs, newest first.
func (r Runs) Took() ([]cluster.Took, error) {
	runs, err := journal.Runs(r.Dir)
	if err != nil {
		return nil, err
	}
	var all []cluster.Took
	var errs []error
	for _, info := range runs[:min(pastRuns, len(runs))] {
		took, err := r.tookIn(info.ID)
		all, errs = slices.Concat(all, took), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// tookIn returns the durations of nodes in one run.
func (r Runs) tookIn(run string) (all []cluster.Took, err error) {
	j, err := journal.Open(r.Dir, journal.Options{Run: run, ReadOnly: true})
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
