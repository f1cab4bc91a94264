package attempt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/cluster/planning"
)

// progress is what has happened so far. It may be read while events come.
type progress struct {
	mu      sync.Mutex
	total   int
	planned []string        // nodes; "": the whole cluster
	done    map[string]bool // by name
	node    string
	message string
	changed bool
}

func newProgress(planned, done []string) *progress {
	p := &progress{total: len(planned), planned: planned, done: map[string]bool{}}
	for _, node := range done {
		p.done[node] = true
	}
	return p
}

// see takes an event of recast's.
func (p *progress) see(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, node, below := planning.NodeOfStep(e.Step)
	if node != "" && len(below) == 0 && (e.Status == "done" || e.Status == "skipped") {
		p.done[node] = true
	}
	if e.Node != "" {
		p.node = e.Node
	}
	if e.Status == "started" || e.Status == "note" || e.Status == "failed" {
		p.message = strings.TrimSuffix(e.Title+": "+e.Text, ": ")
	}
	p.changed = true
}

// now is the progress at this moment.
func (p *progress) now(a *Attempt) v1alpha1.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = false
	var finished []string
	for _, node := range p.planned {
		if p.done[node] {
			finished = append(finished, node)
		}
	}
	return v1alpha1.Progress{
		Done: int32(len(finished)), Total: int32(p.total), Summary: fmt.Sprintf("%d/%d", len(finished), p.total), Finished: finished,
		Node: p.node, Message: p.message, Updated: new(a.Now()),
	}
}

func (p *progress) hasChanged() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// tellEvery is how often progress is written at most: it is for people who look at it.
const tellEvery = 3 * time.Second

// tellPatience is how long one write may take.
const tellPatience = 10 * time.Second

// tell writes the progress while it changes, until stop is called. Who can't be told misses it: the
// roll does not wait for them.
func (a *Attempt) tell(ctx context.Context, p *progress) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
		every := time.NewTicker(tellEvery)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
			if p.hasChanged() {
				a.tellNow(ctx, p)
			}
		}
	})
	return func() { cancel(); telling.Wait() }
}

// tellNow writes the progress once. If that fails, tell does it with its next tick.
func (a *Attempt) tellNow(ctx context.Context, p *progress) {
	ctx, cancel := context.WithTimeout(ctx, tellPatience)
	defer cancel()
	err := a.Reporter.status(ctx, a.object(), map[string]any{"progress": p.now(a)})
	if err == nil {
		return
	}
	p.mu.Lock()
	p.changed = true
	p.mu.Unlock()
	if !errors.Is(err, context.Canceled) {
		fmt.Fprintf(a.Reporter.Log, "tell the progress: %v\n", err)
	}
}
