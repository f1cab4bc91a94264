package rolling

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// Final marks an error that is not retried; Final(nil) is nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &cluster.FinalError{Err: err}
}

// Repeat calls the function Repeat for a step of the node; id is the step's path below the node.
func (n *Node) Repeat(ctx context.Context, id string, within time.Duration, do func(context.Context) error) error {
	return Repeat(ctx, n.Timing.Poll, within, func(text string) { n.Say(path.Join(n.Path, id), text) }, do)
}

// Repeat repeats do until its reads are answered, at most for within, and says what it waits for. Any other error
// ends the repetition, and so does the end of ctx.
func Repeat(ctx context.Context, every, within time.Duration, say func(string), do func(context.Context) error) (err error) {
	var since time.Time // the first unanswered attempt
	w := wait.For{Name: "an answer", Every: max(every, time.Second)}
	w.Seen = func(seen string) { say(fmt.Sprintf("asked again for up to %s: %s", within, seen)) }
	_ = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) { // err says how it ended
		err = do(ctx)
		switch {
		case !cluster.IsUnanswered(err):
			return true, "", nil
		case ctx.Err() != nil:
			return true, "", nil
		case since.IsZero():
			since = time.Now()
		}
		if time.Since(since) >= within {
			err = Final(fmt.Errorf("%w; asked again for %s", err, within))
			return true, "", nil
		}
		return false, err.Error(), nil
	})
	if ctx.Err() != nil && cluster.IsUnanswered(err) && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return err
}

// RepeatFor returns for how long a step of the node is repeated; id is the step's path below the node.
func (n *Node) RepeatFor(id string) time.Duration {
	if !n.Plan.Resume && slices.Contains(servesDuring, id) {
		return RepeatBefore
	}
	return max(n.Timing.Join, RepeatBefore)
}

// Repeating makes a step of the node, and every step below it, repeat while its reads are unanswered. id is the
// step's path below the node.
func (n *Node) Repeating(id string, s step.Step) step.Step {
	within := n.RepeatFor(id)
	skip, do, steps := s.Skip, s.Do, s.Steps
	if skip != nil {
		s.Skip = func(ctx context.Context) (reason string, err error) {
			err = n.Repeat(ctx, id, within, func(ctx context.Context) error {
				reason, err = skip(ctx)
				return err
			})
			return reason, err
		}
	}
	if do != nil {
		s.Do = func(ctx context.Context) error {
			again := false
			return n.Repeat(ctx, id, within, func(ctx context.Context) error {
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
			err = n.Repeat(ctx, id, within, func(ctx context.Context) error {
				list, err = steps(ctx)
				return err
			})
			return n.RepeatingAll(id, list), err
		}
	}
	return s
}

// RepeatingAll is Repeating for each of the steps below a path.
func (n *Node) RepeatingAll(below string, list []step.Step) []step.Step {
	return cluster.Each(list, func(s step.Step) step.Step { return n.Repeating(path.Join(below, s.ID), s) })
}

// RepeatBefore is how long a step is repeated while the node still serves. Once the node is out, the end of its roll
// would not bring it back: then a step is repeated for Timing.Join, if that is longer.
const RepeatBefore = 3 * time.Minute

// Repeatable marks the error of a change that is idempotent.
func Repeatable(err error) error {
	if !errors.Is(err, cluster.ErrLostAnswer) {
		return err
	}
	return &cluster.RepeatableError{Err: err}
}

// servesDuring lists the steps during which the node still serves, by their path below the node. During a gate the
// node serves only if its roll had not begun before.
var servesDuring = []string{"snapshot-etcd", "gate", "pull", "take-down/remember", "take-down/drain", "take-down/leave-etcd", "upgrade/remember", "upgrade/drain"}
