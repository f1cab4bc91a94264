package step_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
)

func TestRunSlots(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"as many as the limit": {
			root: limit(2, branch("r", leaf("a", lasts(1*second)), leaf("b", lasts(3*second)), leaf("c", lasts(1*second)))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/b", "1s done r/a", "1s started r/c", "2s done r/c",
				"3s done r", "3s done r/b",
			},
		},
		"one at a time in a slot": {
			root: limit(2, branch("r", uses(leaf("a", lasts(1*second)), "host/pve1"), late(uses(leaf("b", lasts(1*second)), "host/pve1", "host/pve1")))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"1s done r/a", "1s started r/late/b", "2s done r", "2s done r/late", "2s done r/late/b",
			},
		},
		"slots are shared over the tree and have room": {
			root: limit(2, branch("r",
				limit(2, branch("x", uses(leaf("a", lasts(1*second)), "disk"), uses(leaf("b", lasts(1*second)), "disk"))),
				branch("y", leaf("wait", lasts(second/2)), uses(leaf("c", lasts(1*second)), "disk")))),
			slots: map[string]int{"disk": 2},
			events: []string{
				"0s started r", "0s started r/x", "0s started r/x/a", "0s started r/x/b", "0s started r/y", "0s started r/y/wait",
				"500ms done r/y/wait", "1s done r/x", "1s done r/x/a", "1s done r/x/b", "1s started r/y/c",
				"2s done r", "2s done r/y", "2s done r/y/c",
			},
		},
		"a slot is taken before the world is asked": {
			root: limit(2, branch("r", uses(leaf("a", lasts(1*second)), "s"), late(uses(sleepy(leaf("b", work), 2*second), "s")))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"1s done r/a", "3s skipped r/late/b: slept", "3s done r/late", "3s done r",
			},
		},
		"what a step around holds is not taken again": {
			root: uses(branch("r", uses(leaf("a", lasts(1*second)), "s", "t"), uses(leaf("b", work), "s")), "s"),
			events: []string{
				"0s started r", "0s started r/a", "1s done r", "1s done r/a", "1s done r/b", "1s started r/b",
			},
		},
		"many slots in opposite order do not block each other": {
			root: limit(2, branch("r", uses(leaf("a", lasts(1*second)), "s", "t"), late(uses(leaf("b", lasts(1*second)), "t", "s")))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"1s done r/a", "1s started r/late/b", "2s done r", "2s done r/late", "2s done r/late/b",
			},
		},
	}
	must.Each(t, stories, inBubble)
}

// timed collects events with the time since the start: "3s done roll/a".
type timed struct {
	start time.Time
	log
}

func newTimed() *timed { return &timed{start: time.Now()} }

func (l *timed) add(e step.Event) {
	l.log.add(e)
	last := &l.log[len(l.log)-1]
	*last = fmt.Sprintf("%s %s", time.Since(l.start), *last)
}

// sorted orders events of the same instant by their text.
func (l *timed) sorted() []string {
	at := func(s string) time.Duration {
		var d string
		_, _ = fmt.Sscan(s, &d) // every line starts with one
		v, _ := time.ParseDuration(d)
		return v
	}
	slices.SortStableFunc(l.log, func(a, b string) int { return cmp.Or(cmp.Compare(at(a), at(b)), cmp.Compare(a, b)) })
	return l.log
}

func lasts(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func then(do, next func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := do(ctx); err != nil {
			return err
		}
		return next(ctx)
	}
}

func limit(n int, s step.Step) step.Step {
	s.Limit = n
	return s
}

// late is a branch that sleeps for a millisecond, so that its sibling is first.
func late(s step.Step) step.Step { return branch("late", leaf("wait", lasts(ms)), s) }

const (
	second = time.Second
	ms     = time.Millisecond
)

// inBubble checks a story with the times of its events; those of the same instant may be in any order.
func inBubble(t *testing.T, s story) {
	synctest.Test(t, func(t *testing.T) {
		got, want := newTimed(), timed{log: s.events}
		s.run(t, got.add)
		must.Equal(t, "events", want.sorted(), got.sorted())
	})
}

func refuses(context.Context) error { return fault.Refusedf("no quorum") }

func sleepy(s step.Step, d time.Duration) step.Step {
	s.Skip = func(context.Context) (string, error) {
		time.Sleep(d)
		return "slept", nil
	}
	return s
}

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
				must.Do(t, new(step.Runner).Run(t.Context(), root))
				must.Equal(t, "read by", tc.want, strings.Join(reads, ", "))
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
		must.Get(read(t.Context()))(t)
	}
	if reads != 3 {
		t.Errorf("read %d times", reads)
	}
}
