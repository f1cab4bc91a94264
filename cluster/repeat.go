package cluster

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// A server that is busy or restarts says nothing about a node. So the steps of a
// node are repeated for as long as what they read is left unanswered. A step asks
// its goal first each time, and may be run again after it was cut off anywhere.

// repeatBefore is for how long a step is repeated while the node still serves.
// Later the node is away, and ending its roll does not bring it back: then a step
// is repeated for Timing.Join.
const repeatBefore = 3 * time.Minute

// servesDuring are the steps during which the node still serves, by their path
// below the node. It serves during a gate only where nothing was begun.
var servesDuring = []string{"snapshot-etcd", "gate", "pull", "take-down/remember", "take-down/drain", "take-down/leave-etcd", "upgrade/remember", "upgrade/drain"}

func (n *nodeRoll) repeatFor(id string) time.Duration {
	if !n.plan.Resume && slices.Contains(servesDuring, id) {
		return repeatBefore
	}
	return max(n.Timing.Join, repeatBefore)
}

// repeating has a step of the node, and every step below it, repeated while its
// reads are unanswered; id is its path below the node.
func (n *nodeRoll) repeating(id string, s step.Step) step.Step {
	within := n.repeatFor(id)
	skip, do, steps := s.Skip, s.Do, s.Steps
	if skip != nil {
		s.Skip = func(ctx context.Context) (reason string, err error) {
			err = n.repeat(ctx, id, within, func(ctx context.Context) error {
				reason, err = skip(ctx)
				return err
			})
			return reason, err
		}
	}
	if do != nil {
		s.Do = func(ctx context.Context) error {
			again := false
			return n.repeat(ctx, id, within, func(ctx context.Context) error {
				if again && skip != nil {
					if reason, err := skip(ctx); err != nil || reason != "" {
						return err
					}
				}
				again = true
				return do(ctx)
			})
		}
	}
	if steps != nil {
		s.Steps = func(ctx context.Context) (list []step.Step, err error) {
			err = n.repeat(ctx, id, within, func(ctx context.Context) error {
				list, err = steps(ctx)
				return err
			})
			return n.repeatingAll(id, list), err
		}
	}
	return s
}

func (n *nodeRoll) repeatingAll(below string, list []step.Step) []step.Step {
	var out []step.Step
	for _, s := range list {
		out = append(out, n.repeating(path.Join(below, s.ID), s))
	}
	return out
}

// repeat does something again until its reads are answered, for within at most,
// and says under the step's ID what it waits for. Every other error ends it, and so
// does the end of ctx.
func (n *nodeRoll) repeat(ctx context.Context, id string, within time.Duration, do func(context.Context) error) (err error) {
	var since time.Time // the first that was unanswered
	w := wait.For{Name: "an answer", Every: max(n.Timing.Poll, time.Second)}
	w.Seen = func(seen string) {
		n.Say(path.Join(n.path, id), fmt.Sprintf("asked again for up to %s: %s", within, seen))
	}
	_ = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) { // err says how it ended
		err = do(ctx)
		switch {
		case !isUnanswered(err):
			return true, "", nil
		case ctx.Err() != nil:
			return true, "", nil
		case since.IsZero():
			since = time.Now()
		}
		if time.Since(since) >= within {
			err = final(fmt.Errorf("%w; asked again for %s", err, within))
			return true, "", nil
		}
		return false, err.Error(), nil
	})
	if ctx.Err() != nil && isUnanswered(err) && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return err
}

// isUnanswered says whether all that went wrong is that a server gave no clear
// answer to a read, or to a change that may be made twice. A refusal beside it is a clear answer.
func isUnanswered(err error) bool {
	if _, isFinal := errors.AsType[*finalError](err); isFinal || isClear(err) {
		return false
	}
	if _, may := errors.AsType[*repeatableError](err); may {
		return true
	}
	_, away := errors.AsType[*HostsAway](err)
	return (away || errors.Is(err, ErrNotNow)) && !errors.Is(err, ErrLostAnswer)
}

// isClear says whether part of err is a refusal that does not come of a missing answer.
func isClear(err error) bool {
	if err == nil {
		return false
	}
	if _, silent := err.(*silentError); silent { //nolint:errorlint // this very error, nothing below it
		return false
	}
	if _, away := errors.AsType[*HostsAway](err); fault.KindOf(err) != fault.Failed && !away && !errors.Is(err, ErrNotNow) {
		return true
	}
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case interface{ Unwrap() error }:
		return isClear(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), isClear)
	}
	return false
}

// silentError is a refusal for the sole reason that somebody gave no answer.
type silentError struct{ error }

func (e *silentError) Unwrap() error        { return e.error }
func (e *silentError) Is(target error) bool { return target == ErrNotNow }

// repeatableError is a change whose answer was lost and that may be made again.
type repeatableError struct{ error }

func (e *repeatableError) Unwrap() error { return e.error }

// repeatable marks the error of a change that is the same when it is made twice.
func repeatable(err error) error {
	if !errors.Is(err, ErrLostAnswer) {
		return err
	}
	return &repeatableError{err}
}

// finalError is one after which a step is not repeated: it was repeated for long
// enough, or the node was put back as it was.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

func final(err error) error {
	if err == nil {
		return nil
	}
	return &finalError{err}
}
