// Package wait waits until a condition holds. [Until] calls a [Look] again and again, as a [For] says. If Until gives
// up, its error says what the Look saw last.
package wait

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Look checks the condition once. It returns whether the wait is over and, in a few words, what it saw ("2 of 3
// members"). After an error the wait continues, and the error counts as what was seen; an error wrapped in Stop ends
// the wait at once.
type Look func(ctx context.Context) (done bool, seen string, err error)

type stopError struct{ error }

func (e *stopError) Unwrap() error { return e.error }

// Stop marks an error that more waiting can't fix. Stop(nil) is nil.
func Stop(err error) error {
	if err == nil {
		return nil
	}
	return &stopError{err}
}

// Watch reports changes until ctx ends or the watch is lost. It calls tell once it is in place, and whenever
// something has changed; look says whether to look at once. A report is only a hint: the Look decides whether the
// condition holds.
type Watch func(ctx context.Context, tell func(look bool)) error

// For names a wait and bounds it.
type For struct {
	Name     string        // what is waited for: "etcd on cp1 healthy"
	First    time.Duration // shortest pause; pauses grow with the time since the wait started, or since the last hint; 0: Every
	Every    time.Duration // longest pause between two looks
	Expected time.Duration // how long the wait will take, if known: the first look is then, and the next looks follow closely
	Timeout  time.Duration // 0: until the context ends

	Watches []Watch       // are restarted when they are lost
	Watched time.Duration // longest pause while all watches are in place; the shortest is a quarter of it, but at least Every; 0: Every
	// Due returns the pause while a Look measures a duration, with or without watches, at most Every; 0: Due sets no
	// pause. May be nil.
	Due func() time.Duration

	Seen func(seen string) // is called when what is seen changes; may be nil
}

// A pause is this fraction of the time that has passed, which bounds how late the wait ends.
const (
	part     = 4
	finePart = 128 // right after Expected
)

func (w For) pause(since time.Duration, watched bool) time.Duration {
	if w.Due != nil {
		if due := w.Due(); due > 0 {
			return min(due, w.Every)
		}
	}
	if watched {
		return max(w.Every, min(max(since, w.Watched/part), w.Watched))
	}
	share := since / part
	switch {
	case w.First == 0:
		return w.Every
	case since < w.Expected:
		share = w.Expected - since
	case w.Expected > 0: // soon after Expected, at most as long as the wait is late
		share = min(share, max(since-w.Expected, w.Expected/finePart))
	}
	return min(max(share, w.First), w.Every)
}

// Until calls look until look is done, and returns nil; or until the timeout, the context, or a Stop error ends the
// wait. The error then holds the name, how long Until waited and what was seen last:
//
//	etcd on cp1 healthy: gave up after 15m0s; last seen: 2 of 3 members: context deadline exceeded
func Until(ctx context.Context, w For, look Look) error {
	start := time.Now()
	if w.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.Timeout)
		defer cancel()
	}
	hints := newHints(w.Watches, w.Every)
	watching, cancel := context.WithCancel(ctx)
	defer hints.running.Wait()
	defer cancel()
	const nothing = "nothing yet"
	last, answer, hinted := nothing, "", start
	for first := true; ; first = false {
		hints.watch(watching)
		if first && w.Expected > 0 {
			later := time.NewTimer(w.pause(0, false))
			select {
			case <-ctx.Done():
			case <-hints.changed:
			case <-later.C:
			}
			later.Stop()
		}
		done, seen, err := look(ctx)
		if done && err == nil {
			return nil
		}
		// An answer that our own deadline cut short says nothing about the condition.
		cut := ctx.Err() != nil && errors.Is(err, ctx.Err())
		if stop, ok := errors.AsType[*stopError](err); ok && (!cut || last == nothing) {
			return fmt.Errorf("%s: %w", w.Name, stop.error)
		}
		if ctx.Err() == nil {
			if err != nil {
				seen = err.Error()
			} else if seen != "" {
				answer = seen
			}
			if seen != "" && seen != last {
				last = seen
				if w.Seen != nil {
					w.Seen(seen)
				}
			}
		}
		pause := time.NewTimer(w.pause(time.Since(hinted), hints.complete()))
		select {
		case <-ctx.Done():
			pause.Stop()
			if answer != "" && answer != last { // why the wait was not over is not lost because the last looks failed
				last = answer + "; then " + last
			}
			return fmt.Errorf("%s: gave up after %s; last seen: %s: %w",
				w.Name, time.Since(start).Round(time.Second), last, context.Cause(ctx))
		case <-hints.changed:
			pause.Stop()
			hinted = time.Now()
		case <-pause.C:
		}
	}
}

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
			_ = w.watch(ctx, func(look bool) { // the error of a watch does not matter: the wait still polls
				w.inPlace.Store(true)
				if look {
					h.hint()
				}
			})
			lost := w.inPlace.Swap(false)
			w.runs.Store(false)
			if lost { // the current pause assumes that the watch is in place
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

func (h *hints) complete() bool {
	return len(h.all) > 0 && !slices.ContainsFunc(h.all, func(w *watching) bool { return !w.inPlace.Load() })
}

// All runs asks that do not depend on each other's answers at the same time, which takes one round instead of
// several, and waits for all of them. All joins their errors, in the order of asks.
func All(asks ...func() error) error {
	errs := make([]error, len(asks))
	var all sync.WaitGroup
	for i, ask := range asks {
		all.Go(func() { errs[i] = ask() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Into is an ask for All that stores its answer.
func Into[T any](answer *T, ask func() (T, error)) func() error {
	return func() (err error) {
		*answer, err = ask()
		return err
	}
}

// Aside is an ask for All whose error is judged later, whatever the other asks answer.
func Aside(later *error, ask func() error) func() error {
	return func() error {
		*later = ask()
		return nil
	}
}

// Elapsed returns the time since then, by the clock that shows more: a monotonic clock stops while a machine sleeps,
// and a wall clock can be set back.
func Elapsed(then time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)))
}
