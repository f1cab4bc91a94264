package pipeline

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
)

// tally is the story of a command's nodes so far.
type tally struct {
	mu   sync.Mutex
	fold story.Fold
}

// listen makes the tally see every event; the returned func ends that.
func (t *tally) listen(run *step.Runner) func() { return run.Listen(t.see) }

func (t *tally) see(e step.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fold.See(time.Now(), e)
}

// fates returns the nodes by result; planned nodes that were not started count as left.
func (t *tally) fates(planned []string) cluster.Fates {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := map[string]*story.Turn{} // of each node
	for _, turn := range t.fold.Turns {
		if !turn.Began.IsZero() {
			last[turn.Node] = turn
		}
	}
	f := cluster.Fates{Done: []string{}, Failed: []string{}, Left: []string{}}
	for _, name := range slices.Sorted(maps.Keys(last)) {
		switch turn := last[name]; {
		case turn.IsWell():
			f.Done = append(f.Done, name)
		case turn.Status == step.Failed.String() && !turn.Interrupted:
			f.Failed = append(f.Failed, name)
		default:
			f.Left = append(f.Left, name)
		}
	}
	for _, name := range planned {
		if last[name] == nil {
			f.Left = append(f.Left, name)
		}
	}
	slices.Sort(f.Left)
	return f
}

// keepDurations records in the journal how long each node of the plan takes: later plans use it as an estimate. The
// tally must listen already. The returned func ends the recording, and returns the first error of the journal.
func (w *work) keepDurations(j *journal.Journal) (end func() error) {
	nodes := map[string]planning.NodePlan{} // by path
	for _, n := range w.rep.Plan.Work() {
		if !n.Resume { // the duration of an unfinished replacement is unknown
			nodes[planning.StepPath(n.Phase, n.Node)] = n
		}
	}
	var failed error
	unlisten := w.run.Listen(func(e step.Event) {
		n, planned := nodes[e.Path]
		if !planned || e.Status != step.Done {
			return
		}
		if took, measured := w.tally.took(n); measured {
			failed = cmp.Or(failed, j.Put(cluster.TookKey(n.Node), took))
		}
	})
	return func() error {
		unlisten()
		return failed
	}
}

// took is how long the turn of a node has taken.
func (t *tally) took(n planning.NodePlan) (took cluster.Took, measured bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, turn := range slices.Backward(t.fold.Turns) {
		if turn.Node == n.Node && turn.Phase == string(n.Phase) {
			return turn.Took(n)
		}
	}
	return cluster.Took{}, false
}
