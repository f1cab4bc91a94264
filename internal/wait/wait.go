// Package wait waits until something is so, and when it gives up says what it
// saw last.
package wait

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Look asks the world once. It returns whether the wait is over and, in a few
// words, what it saw ("2 of 3 members"). An error is remembered as what was
// seen and asked about again; wrap it in Stop to end the wait at once.
type Look func(ctx context.Context) (done bool, seen string, err error)

type stopError struct{ error }

func (e *stopError) Unwrap() error { return e.error }

// Stop marks an error that no further waiting can mend. Stop(nil) is nil.
func Stop(err error) error {
	if err == nil {
		return nil
	}
	return &stopError{err}
}

// Watch tells of changes of what is waited for, until ctx ends or it is lost: once
// it is in place, and whenever something has changed; look says whether that is
// worth a look. It only hints: what is so the look decides.
type Watch func(ctx context.Context, tell func(look bool)) error

// For names a wait and bounds it.
type For struct {
	Name     string        // what is waited for: "etcd on cp1 healthy"
	First    time.Duration // shortest pause: they grow with the time since the wait began, or since a watch told something; 0: Every
	Every    time.Duration // longest pause between two looks
	Expected time.Duration // how long it will take, if that is known: the first look is then, and the next ones are closest
	Timeout  time.Duration // 0: as long as the context lives

	Watches []Watch       // are begun anew when they are lost
	Watched time.Duration // longest pause while all of them are in place, the shortest being a quarter of it; 0: Every
	// Due is the longest pause that a look which has begun to time something may
	// bear, watches or not; 0: any. May be nil.
	Due func() time.Duration

	Seen func(seen string) // told when what is seen changes; may be nil
}

// A pause is such a part of the time that has passed: the wait ends that much late at most.
const (
	part     = 4
	finePart = 128 // right after the time when it is expected to be so
)

// pause is how long not to look, since that long after the last hint.
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
	case w.Expected > 0: // as long again as it is late, at first
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
		// An answer cut short by our own deadline says nothing about the world.
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
