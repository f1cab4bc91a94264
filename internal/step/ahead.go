package step

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

// ahead runs the Ahead steps of a step. If they fail, or may no longer start, the step
// itself is not started.
func (t *tree) ahead(ctx context.Context, s Step, at place) outcome {
	if len(s.Ahead) == 0 {
		return outcome{}
	}
	if at.scope.ended(ctx) {
		return t.notStarted(s, at)
	}
	if err := checkAhead(s.Ahead, at.held); err != nil {
		return t.failed(ctx, s, at, err)
	}
	out := t.children(ctx, Step{Limit: len(s.Ahead)}, s.Ahead, at)
	switch {
	case len(out.failures) > 0:
		t.Tell(s.event(at, Failed, "", errors.Join(out.failures...)))
	case len(out.notStarted) > 0:
		return t.notStarted(s, at)
	}
	return out
}

// lookingAhead runs children in order, Limit of them at a time (plus those that are
// Beside another), and meanwhile runs the Ahead steps of the next ones.
func (t *tree) lookingAhead(ctx context.Context, s Step, steps []Step, below func(Step, []outcome) place) []outcome {
	limit := max(1, s.Limit)
	outs := make([]outcome, len(steps))
	prepared := make([]chan struct{}, len(steps))
	for i := range steps {
		prepared[i] = make(chan struct{})
	}
	window := make(chan struct{}, limit+s.LookAhead+countBeside(steps)) // a token for each child that was started
	var running, preparing errgroup.Group
	if limit > 1 {
		running.SetLimit(limit)
	}
	preparing.Go(func() error {
		for i, child := range steps {
			window <- struct{}{}
			preparing.Go(func() error {
				defer close(prepared[i])
				outs[i] = t.ahead(ctx, child, below(child, nil))
				return nil
			})
		}
		return nil
	})
	for i, child := range steps {
		if limit == 1 && !child.Beside || child.Alone || i > 0 && steps[i-1].Alone {
			_ = running.Wait() // outcomes carry the errors
		}
		running.Go(func() error {
			<-prepared[i]
			if outs[i].isClean() {
				outs[i] = t.itself(ctx, child, below(child, outs[:i]))
			}
			<-window
			return nil
		})
	}
	_, _ = running.Wait(), preparing.Wait() // outcomes carry the errors
	return outs
}

func countBeside(steps []Step) (n int) {
	for _, s := range steps {
		if s.Beside {
			n++
		}
	}
	return n
}

// checkAhead is checkSteps for Ahead steps. They may not take slots: with a slot, one
// could block the steps that run beside it.
func checkAhead(steps []Step, held []string) error {
	var problems []error
	for _, s := range steps {
		if len(s.Uses) > 0 || s.Whole {
			problems = append(problems, errors.New("step \""+s.ID+"\" is Ahead of another step, so it can neither take slots nor be Whole"))
		}
	}
	return errors.Join(append(problems, checkSteps(steps, held))...)
}
