package step_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// An event has the kind of its step, and none for a branch.
func TestKinds(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	r := step.Runner{Emit: func(e step.Event) { got[e.Path] = e.Kind }}
	err := r.Run(t.Context(), branch("roll", branch("wk1", leaf("drain", work), step.Step{ID: "scsi1", Kind: "park-disk", Do: work}), whole(branch("none"))))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"roll": "", "roll/wk1": "", "roll/wk1/drain": "drain", "roll/wk1/scsi1": "park-disk", "roll/none": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

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

// TestContextOfSteps: Skip and Do of a step get its context, below that of its branch,
// and one event ends it.
func TestContextOfSteps(t *testing.T) {
	t.Parallel()
	type key struct{}
	within := func(ctx context.Context) string { text, _ := ctx.Value(key{}).(string); return text }
	var said log
	asks := func(id string) step.Step {
		return step.Step{
			ID:   id,
			Skip: func(ctx context.Context) (string, error) { return "asked in" + within(ctx), nil },
		}
	}
	does := leaf("does", func(ctx context.Context) error { return fmt.Errorf("done in%s", within(ctx)) })
	r := step.Runner{
		Emit: said.add,
		Context: func(ctx context.Context, path string) context.Context {
			return context.WithValue(ctx, key{}, within(ctx)+" "+path)
		},
	}
	if err := r.Run(t.Context(), branch("roll", asks("asks"), does, leaf("late", work))); err == nil {
		t.Error("nothing failed")
	}
	want := log{
		"started roll",
		"skipped roll/asks: asked in roll roll/asks",
		"started roll/does", "failed roll/does: roll/does: done in roll roll/does",
		"not started roll/late",
		"failed roll: roll/does: done in roll roll/does",
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
