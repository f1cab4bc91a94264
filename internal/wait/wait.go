// Package wait waits until something is so, and when it gives up says what it
// saw last.
package wait

import (
	"cmp"
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

// For names a wait and bounds it.
type For struct {
	Name    string            // what is waited for: "etcd on cp1 healthy"
	First   time.Duration     // pause after the first look, and twice as long after each further one, up to Every; 0: Every
	Every   time.Duration     // pause between two looks
	Timeout time.Duration     // 0: as long as the context lives
	Seen    func(seen string) // told when what is seen changes; may be nil
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
	pause := min(cmp.Or(w.First, w.Every), w.Every)
	const nothing = "nothing yet"
	last := nothing
	for {
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
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: gave up after %s; last seen: %s: %w",
				w.Name, time.Since(start).Round(time.Second), last, context.Cause(ctx))
		case <-time.After(pause):
			pause = min(2*pause, w.Every)
		}
	}
}
