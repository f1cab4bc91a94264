package step_test

import (
	"context"
	"errors"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

func TestFailuresHaveTheCodeOfTheirStep(t *testing.T) {
	t.Parallel()
	fails := func(err error) func(context.Context) error {
		return func(context.Context) error { return err }
	}
	what := errors.New("what")
	cases := map[string]struct {
		child step.Step
		want  fault.Code
	}{
		"of the branch":       {step.Step{ID: "a", Do: fails(what)}, fault.ParkedHalf},
		"of its own":          {step.Step{ID: "a", Code: fault.DrainBlocked, Do: fails(what)}, fault.DrainBlocked},
		"of the error itself": {step.Step{ID: "a", Code: fault.DrainBlocked, Do: fails(fault.NoQuorum.Of(what))}, fault.NoQuorum},
		"of a failing Skip":   {step.Step{ID: "a", Code: fault.NoBoot, Skip: func(context.Context) (string, error) { return "", what }}, fault.NoBoot},
		"of an unmet goal":    {step.Step{ID: "a", Code: fault.NoBoot, Skip: func(context.Context) (string, error) { return "", nil }}, fault.NoBoot},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen error
			run := &step.Runner{Emit: func(e step.Event) {
				if e.Path == "root/a" && e.Status == step.Failed {
					seen = e.Err
				}
			}}
			err := run.Run(t.Context(), step.Step{ID: "root", Code: fault.ParkedHalf, Steps: func(context.Context) ([]step.Step, error) {
				return []step.Step{c.child}, nil
			}})
			if fault.CodeOf(err) != c.want || fault.CodeOf(seen) != c.want {
				t.Errorf("code %q, of the event %q, want %q", fault.CodeOf(err), fault.CodeOf(seen), c.want)
			}
		})
	}
}
