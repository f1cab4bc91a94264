package step_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/step"
)

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
