package wait

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// hints are the watches of one wait. None of them outlives it.
type hints struct {
	changed chan struct{} // gets a value after every change that was not looked at yet
	running sync.WaitGroup
	pause   time.Duration // from one beginning of a watch to the next
	all     []*watching
}

type watching struct {
	watch   Watch
	began   time.Time // when it did so last
	runs    atomic.Bool
	inPlace atomic.Bool
}

func newHints(watches []Watch, pause time.Duration) *hints {
	h := &hints{changed: make(chan struct{}, 1), pause: pause}
	for _, w := range watches {
		h.all = append(h.all, &watching{watch: w})
	}
	return h
}

// watch begins those anew that do not run: before a look, so that what changes
// after it is told. One that is cut off again and again must not make looks follow
// upon each other, since each tells first how things are.
func (h *hints) watch(ctx context.Context) {
	for _, w := range h.all {
		if time.Since(w.began) < h.pause || w.runs.Swap(true) {
			continue
		}
		w.began = time.Now()
		h.running.Go(func() {
			_ = w.watch(ctx, func(look bool) { // why it was lost does not matter: looking goes on without
				w.inPlace.Store(true)
				if look {
					h.hint()
				}
			})
			lost := w.inPlace.Swap(false)
			w.runs.Store(false)
			if lost { // the pause of now was for as long as it is in place
				h.hint()
			}
		})
	}
}

func (h *hints) hint() {
	select {
	case h.changed <- struct{}{}:
	default: // there is one already
	}
}

// complete says whether every watch is in place; without any nothing is watched.
func (h *hints) complete() bool {
	for _, w := range h.all {
		if !w.inPlace.Load() {
			return false
		}
	}
	return len(h.all) > 0
}
