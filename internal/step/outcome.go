package step

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/recast-sh/recast/internal/fault"
)

// outcome is how a step and everything below it ended; zero is success.
type outcome struct {
	failures   []error  // each with its path, in source order
	notStarted []string // paths
}

func (o outcome) isClean() bool { return len(o.failures)+len(o.notStarted) == 0 }

func merge(outs []outcome) outcome {
	var all outcome
	for _, o := range outs {
		all.failures = append(all.failures, o.failures...)
		all.notStarted = append(all.notStarted, o.notStarted...)
	}
	return all
}

// err is the result of Run.
func (o outcome) err(ctx context.Context, stopped bool) error {
	cancelled := context.Cause(ctx)
	failures := o.failures
	if len(o.notStarted) > 0 && (stopped || cancelled != nil) {
		failures = append(failures, ended(ctx, o.notStarted))
	}
	switch {
	case len(failures) == 0:
		return nil
	case len(failures) == 1:
		return failures[0]
	}
	return fault.As(worst(failures), errors.Join(failures...))
}

func ended(ctx context.Context, notStarted []string) error {
	what := "not started: " + strings.Join(notStarted, ", ")
	if cause := context.Cause(ctx); cause != nil {
		return interrupted(ctx, fmt.Errorf("%s: %w", what, cause))
	}
	return fault.As(fault.Interrupted, errors.New("stopped; "+what))
}

// interrupted gives err the kind Interrupted if it comes from ctx being cancelled; a
// passed deadline is a normal failure. A cause that has a kind itself, such as a lost
// claim, takes precedence.
func interrupted(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); fault.KindOf(cause) != fault.Failed {
		if errors.Is(err, cause) {
			return err
		}
		return fmt.Errorf("%w: %w", cause, err)
	}
	if errors.Is(ctx.Err(), context.Canceled) && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		return fault.As(fault.Interrupted, err)
	}
	return err
}

// worst is the common kind of all failures, or Failed if they differ. Interruptions do
// not count unless there is nothing else.
func worst(failures []error) fault.Kind {
	kind := fault.Interrupted
	for _, err := range failures {
		k := fault.KindOf(err)
		switch {
		case k == fault.Interrupted:
		case kind == fault.Interrupted:
			kind = k
		case k != kind:
			return fault.Failed
		}
	}
	return kind
}

// scope limits a halt: the tree has one, and every Whole branch that has started has its
// own. Within a halted scope no further step starts.
type scope struct {
	parent *scope
	halted chan struct{}
	once   sync.Once
}

func newScope(parent *scope) *scope {
	return &scope{parent: parent, halted: make(chan struct{})}
}

func (s *scope) halt() { s.once.Do(func() { close(s.halted) }) }

// fail halts the scope of a failed step and its parents. Other Whole branches that have
// started have their own scopes and continue.
func (s *scope) fail() {
	for ; s != nil; s = s.parent {
		s.halt()
	}
}

// errYielded is the cause with which a step that yields is cancelled.
var errYielded = errors.New("stopped")

// do runs the step's Do. If the step yields, it cancels Do when the whole tree is halted.
func (s Step) do(ctx context.Context, within *scope) error {
	if !s.Yields {
		return s.Do(ctx)
	}
	for within.parent != nil {
		within = within.parent
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		select {
		case <-within.halted:
			cancel(errYielded)
		case <-ctx.Done():
		}
	})
	err := s.Do(ctx)
	if err != nil && context.Cause(ctx) == errYielded {
		return fault.As(fault.Interrupted, err)
	}
	return err
}

// ended says whether no further step may start.
func (s *scope) ended(ctx context.Context) bool {
	select {
	case <-s.halted:
		return true
	default:
		return ctx.Err() != nil
	}
}
