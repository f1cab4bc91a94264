package step

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
