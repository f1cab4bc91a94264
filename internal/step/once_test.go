package step_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/step"
)

// TestOnce: goals that follow each other directly read once; after something was done, after a
// while, beside others and within a Do everything is read.
func TestOnce(t *testing.T) {
	t.Parallel()
	var reads []string
	goal := func(by, reason string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			_, err := step.Once(ctx, "vm", func() (int, error) {
				reads = append(reads, by)
				return 1, nil
			})
			return reason, err
		}
	}
	again := func(by string, lasts time.Duration) step.Step { // its goal is met once it was done
		done := false
		return step.Step{
			ID: by,
			Skip: func(ctx context.Context) (string, error) {
				reason, err := goal(by, "met")(ctx)
				if !done {
					reason = ""
				}
				return reason, err
			},
			Do: func(ctx context.Context) error {
				time.Sleep(lasts)
				done = true
				_, err := goal(by+" at work", "")(ctx)
				return err
			},
		}
	}
	for name, tc := range map[string]struct {
		steps []step.Step
		limit int
		want  string
	}{
		"nothing to do":     {[]step.Step{{ID: "a", Skip: goal("a", "met")}, {ID: "b", Skip: goal("b", "met")}}, 0, "r"},
		"done":              {[]step.Step{again("a", 0), again("b", 0)}, 0, "r, a at work, a, b at work, b"},
		"beside each other": {[]step.Step{{ID: "a", Alone: true, Skip: goal("a", "met")}, {ID: "b", Skip: goal("b", "met")}}, 2, "r, a, b, r"},
		"listed, then later": {[]step.Step{{ID: "a", Do: func(context.Context) error { return nil }}, {ID: "b", Skip: func(ctx context.Context) (string, error) {
			if _, err := goal("b", "")(ctx); err != nil {
				return "", err
			}
			time.Sleep(time.Second)
			return goal("b later", "met")(ctx)
		}}}, 0, "r, b, b later"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reads = nil
				met := false
				root := step.Step{ID: "r", Limit: tc.limit, Steps: step.List(tc.steps...), Skip: func(ctx context.Context) (string, error) {
					reason, err := goal("r", "met")(ctx)
					if !met {
						met, reason = true, ""
					}
					return reason, err
				}}
				if err := new(step.Runner).Run(t.Context(), root); err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(reads, ", "); got != tc.want {
					t.Errorf("read by %s, want %s", got, tc.want)
				}
			})
		})
	}
}

// TestOnceSharesErrors: the next goal gets the same error, and outside of steps everything is read.
func TestOnceSharesErrors(t *testing.T) {
	t.Parallel()
	gone, reads := errors.New("gone"), 0
	read := func(ctx context.Context) (string, error) {
		_, err := step.Once(ctx, "vm", func() (int, error) {
			reads++
			return 0, gone
		})
		if errors.Is(err, gone) {
			return "it is gone", nil
		}
		return "", err
	}
	root := step.Step{ID: "r", Steps: step.List(step.Step{ID: "a", Skip: read}, step.Step{ID: "b", Skip: read})}
	if err := new(step.Runner).Run(t.Context(), root); err != nil || reads != 1 {
		t.Errorf("%v, read %d times", err, reads)
	}
	for range 2 {
		if _, err := read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if reads != 3 {
		t.Errorf("read %d times", reads)
	}
}
