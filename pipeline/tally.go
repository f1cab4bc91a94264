package pipeline

import (
	"maps"
	"slices"
	"sync"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// tally collects the results of a roll's nodes from its events.
type tally struct {
	mu    sync.Mutex
	nodes map[string]step.Status // last status of each node's branch
}

// listen makes the tally see every event; the returned func ends that.
func (t *tally) listen(run *step.Runner) func() {
	return run.Listen(func(e step.Event) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.see(e)
	})
}

// see handles the events of nodes' branches.
func (t *tally) see(e step.Event) {
	_, node, below := planning.NodeOfStep(e.Path)
	if node == "" || len(below) > 0 || e.Status == step.Note {
		return
	}
	if t.nodes == nil {
		t.nodes = map[string]step.Status{}
	}
	t.nodes[node] = e.Status
	if e.Status == step.Failed && fault.KindOf(e.Err) == fault.Interrupted {
		t.nodes[node] = step.Stopped
	}
}

// fates returns the nodes by result; planned nodes that were not started count as left.
func (t *tally) fates(planned []string) cluster.Fates {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := cluster.Fates{Done: []string{}, Failed: []string{}, Left: []string{}}
	for _, name := range slices.Sorted(maps.Keys(t.nodes)) {
		switch t.nodes[name] {
		case step.Done, step.Skipped:
			f.Done = append(f.Done, name)
		case step.Failed:
			f.Failed = append(f.Failed, name)
		default:
			f.Left = append(f.Left, name)
		}
	}
	for _, name := range planned {
		if _, came := t.nodes[name]; !came {
			f.Left = append(f.Left, name)
		}
	}
	slices.Sort(f.Left)
	return f
}
