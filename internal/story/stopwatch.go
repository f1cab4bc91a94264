package story

import (
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
		return len(below) > 1 && !slices.Contains([]string{"remember", "prepare-disk", "drain"}, below[1])
	}
	return true
}

// Stopwatch measures how long each node's roll takes, and records it in the run's journal:
// later plans use it as an estimate.
type Stopwatch struct {
	journal *journal.Journal
	nodes   map[string]planning.NodePlan // by path
	began   map[string]time.Time         // of steps, by path
	away    map[string]time.Time         // since when, by path of the node
	outage  map[string]time.Duration
	steps   map[string]map[string]int
	err     error // see Err
}

// Err is the first error of the journal. Call it after unwatch.
func (s *Stopwatch) Err() error { return s.err }

// Watch makes a Stopwatch see the events of a runner until unwatch is called.
func Watch(run *step.Runner, plan planning.Plan, j *journal.Journal) (s *Stopwatch, unwatch func()) {
	s = &Stopwatch{
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

func (s *Stopwatch) see(e step.Event) {
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
func (s *Stopwatch) back(path string) {
	if since := s.away[path]; !since.IsZero() && s.outage[path] == 0 {
		s.outage[path] = time.Since(since)
	}
}

func (s *Stopwatch) lap(path, step string, took time.Duration) {
	if seconds := wholeSeconds(took); seconds > 0 {
		if s.steps[path] == nil {
			s.steps[path] = map[string]int{}
		}
		s.steps[path][step] = seconds
	}
}

func (s *Stopwatch) keep(n planning.NodePlan, path string) {
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
