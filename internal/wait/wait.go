// Package wait waits until a condition holds: [Until] asks a [Look] again and again, as a
// [For] says. If it gives up, its error says what it saw last.
package wait

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Look checks the condition once. It returns whether the wait is over and, in a few
// words, what it saw ("2 of 3 members"). After an error the wait continues, and the
// error counts as what was seen; wrap it in Stop to end the wait at once.
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

// Watch reports changes until ctx ends or the watch is lost. It calls tell once it is in
// place, and whenever something has changed; look says whether to look at once. It is
// only a hint: the Look decides whether the condition holds.
type Watch func(ctx context.Context, tell func(look bool)) error

// For names a wait and bounds it.
type For struct {
	Name     string        // what is waited for: "etcd on cp1 healthy"
	First    time.Duration // shortest pause; pauses grow with the time since the wait started, or since the last hint; 0: Every
	Every    time.Duration // longest pause between two looks
	Expected time.Duration // how long it will take, if known: the first look is then, and the next ones follow closely
	Timeout  time.Duration // 0: until the context ends

	Watches []Watch       // are restarted when they are lost
	Watched time.Duration // longest pause while all watches are in place; the shortest is a quarter of it; 0: Every
	// Due is the longest pause while a Look measures a duration, with or without
	// watches; 0: no limit. May be nil.
	Due func() time.Duration

	Seen func(seen string) // is called when what is seen changes; may be nil
}

// A pause is this fraction of the time that has passed, which bounds how late the wait ends.
const (
	part     = 4
	finePart = 128 // right after Expected
)

// pause returns how long to pause, given the time since the last hint.
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
	case w.Expected > 0: // at first, as long as it is late
		share = min(share, max(since-w.Expected, w.Expected/finePart))
	}
	return min(max(share, w.First), w.Every)
}

// Until looks until it is done, and returns nil; or until the timeout, the
// context, or a Stop error ends it. The error then holds the name, how long it
// waited and what was seen last:
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
	last, hinted := nothing, start
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
			return fmt.Errorf("%s: gave up after %s; last seen: %s: %w",
				w.Name, time.Since(start).Round(time.Second), last, context.Cause(ctx))
		case <-hints.changed:
			pause.Stop()
			hinted = time.Now()
		case <-pause.C:
		}
	}
}
