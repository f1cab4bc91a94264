package wait

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// hints are the watches of one wait. All of them end before the wait returns.
type hints struct {
	changed chan struct{} // receives a value after a change, until the next look
	running sync.WaitGroup
	pause   time.Duration // minimum time between two starts of a watch
	all     []*watching
}

type watching struct {
	watch   Watch
	began   time.Time // last start
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

// watch restarts watches that have ended. It is called before a look, so that changes
// after the look are reported. Restarts are limited by pause: each start reports the
// current state, so a watch that ends again and again would cause constant looks.
func (h *hints) watch(ctx context.Context) {
	for _, w := range h.all {
		if time.Since(w.began) < h.pause || w.runs.Swap(true) {
			continue
		}
		w.began = time.Now()
		h.running.Go(func() {
			_ = w.watch(ctx, func(look bool) { // its error does not matter: the wait still polls
				w.inPlace.Store(true)
				if look {
					h.hint()
				}
			})
			lost := w.inPlace.Swap(false)
			w.runs.Store(false)
			if lost { // the current pause assumes that it is in place
				h.hint()
			}
		})
	}
}

func (h *hints) hint() {
	select {
	case h.changed <- struct{}{}:
	default: // a hint is pending already
	}
}

// complete says whether there are watches and all of them are in place.
func (h *hints) complete() bool {
	for _, w := range h.all {
		if !w.inPlace.Load() {
			return false
		}
	}
	return len(h.all) > 0
}
