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
	must.Not(t, reads != 3, "read %d times", reads)
}

func TestRunFailuresAmongSiblings(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"a failure lets started work end, but starts nothing": {
			root: limit(2, branch("r",
				leaf("bad", then(lasts(1*second), fails)),
				branch("x", leaf("a", lasts(2*second)), leaf("b", work)),
				leaf("c", work))),
			events: []string{
				"0s started r", "0s started r/bad", "0s started r/x", "0s started r/x/a", "1s failed r/bad: r/bad: broken",
				"1s not started r/c", "2s done r/x/a", "2s failed r: r/bad: broken", "2s not started r/x/b", "2s stopped r/x",
			},
		},
		"a failure lets a started whole branch run to its end, and starts no other": {
			root: limit(2, branch("r",
				whole(branch("wk1", leaf("a", lasts(2*second)), whole(branch("b", leaf("c", lasts(1*second)))))),
				whole(branch("wk2", leaf("a", then(lasts(1*second), fails)), leaf("b", work))),
				whole(branch("wk3", leaf("a", work))))),
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "0s started r/wk2", "0s started r/wk2/a",
				"1s failed r/wk2/a: r/wk2/a: broken", "1s failed r/wk2: r/wk2/a: broken", "1s not started r/wk2/b", "1s not started r/wk3",
				"2s done r/wk1/a", "2s started r/wk1/b", "2s started r/wk1/b/c",
				"3s done r/wk1", "3s done r/wk1/b", "3s done r/wk1/b/c", "3s failed r: r/wk2/a: broken",
			},
		},
		"all failures are reported, and they agree on a kind": {
			root: limit(2, branch("r", leaf("a", then(lasts(2*second), refuses)), leaf("b", then(lasts(1*second), refuses)))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/b", "1s failed r/b: r/b: no quorum", "2s failed r/a: r/a: no quorum",
				"2s failed r: r/a: no quorum\nr/b: no quorum",
			},
			kind: fault.Refused,
		},
		"failures of two kinds": {
			root: limit(2, branch("r", leaf("a", then(lasts(1*second), refuses)), leaf("b", then(lasts(2*second), fails)))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/b", "1s failed r/a: r/a: no quorum", "2s failed r/b: r/b: broken",
				"2s failed r: r/a: no quorum\nr/b: broken",
			},
			kind: fault.Failed,
		},
	}
	must.Each(t, stories, inBubble)
}

func TestStop(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"stop": {
			root: branch("r", whole(branch("wk1", leaf("a", lasts(2*second)), leaf("b", lasts(1*second)))), branch("wk2"), branch("wk3")),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "2s done r/wk1/a", "2s started r/wk1/b",
				"3s done r/wk1", "3s done r/wk1/b", "3s not started r/wk2", "3s not started r/wk3", "3s stopped r",
			},
			err: "stopped; not started: r/wk2, r/wk3", kind: fault.Interrupted,
		},
		"stop while waiting for a slot": {
			root: limit(2, branch("r", uses(leaf("a", lasts(3*second)), "s", "t"), late(uses(leaf("b", work), "r", "t")))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"1s not started r/late/b", "1s stopped r/late", "3s done r/a", "3s stopped r",
			},
			err: "stopped; not started: r/late/b", kind: fault.Interrupted,
		},
		"stop does not end the wait for a slot within a whole branch": {
			root: limit(2, branch("r", uses(leaf("a", lasts(3*second)), "s"), whole(late(uses(leaf("b", work), "s"))))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"3s done r", "3s done r/a", "3s done r/late", "3s done r/late/b", "3s started r/late/b",
			},
		},
		"stop while the world is asked": {
			root: branch("r", whole(skips(branch("wk1", leaf("a", work)), func() (string, error) {
				time.Sleep(2 * second)
				return "", nil
			}))),
			stop:   1 * second,
			events: []string{"0s started r", "2s not started r/wk1", "2s stopped r"},
			err:    "stopped; not started: r/wk1", kind: fault.Interrupted,
		},
		"stop after everything has started": {
			root:   branch("r", leaf("a", lasts(2*second))),
			stop:   1 * second,
			events: []string{"0s started r", "0s started r/a", "2s done r", "2s done r/a"},
		},
		"a failure outweighs a stop": {
			root: branch("r", leaf("a", then(lasts(2*second), refuses)), leaf("b", work)),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/a", "2s failed r/a: r/a: no quorum", "2s failed r: r/a: no quorum", "2s not started r/b",
			},
			err: "r/a: no quorum\nstopped; not started: r/b", kind: fault.Refused,
		},
	}
	must.Each(t, stories, inBubble)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"cancel ends whole branches too": {
			root:   branch("r", whole(branch("wk1", leaf("a", lasts(2*second)), leaf("b", work)))),
			stop:   second / 2,
			cancel: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "1s failed r/wk1/a: r/wk1/a: context canceled",
				"1s failed r/wk1: r/wk1/a: context canceled", "1s failed r: r/wk1/a: context canceled", "1s not started r/wk1/b",
			},
			err:  "r/wk1/a: context canceled\nnot started: r/wk1/b: context canceled",
			kind: fault.Interrupted,
		},
		"cancel while a step ends well, so that nobody can be asked about its goal": {
			root:   skips(leaf("a", func(context.Context) error { time.Sleep(2 * second); return nil }), says("", nil), says("", nil)),
			cancel: 1 * second,
			events: []string{"0s started a", "2s failed a: a: check its goal: context canceled"},
			kind:   fault.Interrupted,
		},
		"cancel while waiting for a slot within a whole branch": {
			root: limit(2, branch("r",
				uses(leaf("a", func(context.Context) error { time.Sleep(3 * second); return nil }), "s"),
				whole(late(uses(leaf("b", work), "s"))))),
			cancel: 1 * second,
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"1s not started r/late/b", "1s stopped r/late", "3s done r/a", "3s stopped r",
			},
			err: "not started: r/late/b: context canceled", kind: fault.Interrupted,
		},
	}
	must.Each(t, stories, inBubble)
}

func TestDeadlineIsAFailure(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 1*second)
		defer cancel()
		var r step.Runner
		err := r.Run(ctx, branch("r", leaf("a", func(context.Context) error { time.Sleep(2 * second); return nil }), leaf("b", work)))
		must.Not(t, !errors.Is(err, context.DeadlineExceeded) || fault.KindOf(err) != fault.Failed,
			"err = %v of kind %v", err, fault.KindOf(err))
	})
}

func TestStopHoldsForLaterRuns(t *testing.T) {
	t.Parallel()
	var got log
	r := step.Runner{Emit: got.add}
	r.Stop()
	err := r.Run(t.Context(), leaf("a", work))
	must.Equal(t, "events", log{"not started a"}, got)
	must.Not(t, message(err) != "stopped; not started: a" || fault.KindOf(err) != fault.Interrupted,
		"err = %v of kind %v", err, fault.KindOf(err))
}

// A failed Run does not affect the next one.
func TestRunAgainAfterFailure(t *testing.T) {
	t.Parallel()
	broken := true
	root := branch("r", uses(leaf("a", func(context.Context) error {
		if broken {
			return errBroken
		}
		return nil
	}), "s"))
	var r step.Runner
	if err := r.Run(t.Context(), root); !errors.Is(err, errBroken) {
		t.Fatalf("err = %v", err)
	}
	broken = false
	must.Do(t, r.Run(t.Context(), root))
}

func yields(s step.Step) step.Step {
	s.Yields = true
	return s
}

// A step that only waits does not delay the end of a stopped run.
func TestYields(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"it runs to its end": {
			root:   branch("r", whole(branch("wk1", yields(leaf("wait", lasts(2*second))), leaf("a", work)))),
			events: []string{"0s started r", "0s started r/wk1", "0s started r/wk1/wait", "2s done r", "2s done r/wk1", "2s done r/wk1/a", "2s done r/wk1/wait", "2s started r/wk1/a"},
		},
		"stop cuts it off, and what follows in its whole branch": {
			root: branch("r", whole(branch("wk1", yields(leaf("wait", lasts(2*second))), leaf("a", work))), whole(branch("wk2", leaf("a", work)))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/wait", "1s failed r/wk1/wait: r/wk1/wait: context canceled",
				"1s failed r/wk1: r/wk1/wait: context canceled", "1s failed r: r/wk1/wait: context canceled", "1s not started r/wk1/a", "1s not started r/wk2",
			},
			err: "r/wk1/wait: context canceled\nstopped; not started: r/wk1/a, r/wk2", kind: fault.Interrupted,
		},
		"one that is stopped before is cut off at once": {
			root: branch("r", whole(branch("wk1", leaf("a", lasts(2*second)), yields(leaf("wait", lasts(2*second)))))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "2s done r/wk1/a", "2s failed r/wk1/wait: r/wk1/wait: context canceled",
				"2s failed r/wk1: r/wk1/wait: context canceled", "2s failed r: r/wk1/wait: context canceled", "2s started r/wk1/wait",
			},
			kind: fault.Interrupted,
		},
		"the failure of a sibling cuts it off, and decides": {
			root: limit(2, branch("r",
				whole(branch("wk1", yields(leaf("wait", lasts(5*second))), leaf("a", work))),
				whole(branch("wk2", leaf("bad", then(lasts(1*second), refuses)))))),
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/wait", "0s started r/wk2", "0s started r/wk2/bad",
				"1s failed r/wk2/bad: r/wk2/bad: no quorum", "1s failed r/wk1/wait: r/wk1/wait: context canceled", "1s failed r/wk1: r/wk1/wait: context canceled",
				"1s failed r/wk2: r/wk2/bad: no quorum", "1s failed r: r/wk1/wait: context canceled\nr/wk2/bad: no quorum", "1s not started r/wk1/a",
			},
			kind: fault.Refused,
		},
	}
	must.Each(t, stories, inBubble)
}

func closes(s step.Step) step.Step {
	s.Alone, s.Closes = true, true
	return s
}

func lookAhead(s step.Step) step.Step {
	s.LookAhead = 1
	return s
}

// A step that closes a branch runs only if all siblings before it succeeded.
func TestCloses(t *testing.T) {
	t.Parallel()
	wk := func(id string) step.Step {
		return whole(branch(id, leaf("a", lasts(second)), leaf("b", lasts(second))))
	}
	stories := map[string]story{
		"stopped during the last one": {
			root: branch("r", leaf("open", work), wk("wk1"), closes(leaf("close", lasts(1*second))), leaf("next", work)),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/open", "0s done r/open", "0s started r/wk1", "0s started r/wk1/a", "1s done r/wk1/a", "1s started r/wk1/b",
				"2s done r/wk1/b", "2s done r/wk1", "2s started r/close", "3s done r/close", "3s not started r/next", "3s stopped r",
			},
			err: "stopped; not started: r/next", kind: fault.Interrupted,
		},
		"stopped with one to come": {
			root: branch("r", wk("wk1"), leaf("wk2", work), closes(leaf("close", work))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "1s done r/wk1/a", "1s started r/wk1/b",
				"2s done r/wk1/b", "2s done r/wk1", "2s not started r/wk2", "2s not started r/close", "2s stopped r",
			},
			err: "stopped; not started: r/wk2, r/close", kind: fault.Interrupted,
		},
		"several at a time": {
			root: limit(2, branch("r", wk("wk1"), wk("wk2"), closes(leaf("close", lasts(1*second))))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "0s started r/wk2", "0s started r/wk2/a", "1s done r/wk1/a", "1s started r/wk1/b",
				"1s done r/wk2/a", "1s started r/wk2/b", "2s done r/wk1", "2s done r/wk1/b", "2s done r/wk2", "2s done r/wk2/b", "2s started r/close", "3s done r/close", "3s done r",
			},
		},
		"another branch fails": {
			root: limit(2, branch("r", leaf("bad", then(lasts(1*second), fails)), lookAhead(branch("x", wk("wk1"), closes(leaf("close", lasts(1*second))))))),
			events: []string{
				"0s started r", "0s started r/bad", "0s started r/x", "0s started r/x/wk1", "0s started r/x/wk1/a", "1s failed r/bad: r/bad: broken",
				"1s done r/x/wk1/a", "1s started r/x/wk1/b", "2s done r/x/wk1/b", "2s done r/x/wk1", "2s started r/x/close", "3s done r/x/close", "3s done r/x", "3s failed r: r/bad: broken",
			},
		},
		"one before it fails": {
			root:   branch("r", leaf("bad", fails), closes(leaf("close", work))),
			events: []string{"0s started r", "0s started r/bad", "0s failed r/bad: r/bad: broken", "0s not started r/close", "0s failed r: r/bad: broken"},
		},
		"it fails itself": {
			root:   branch("r", branch("x", closes(leaf("close", fails))), leaf("next", work)),
			events: []string{"0s started r", "0s started r/x", "0s started r/x/close", "0s failed r/x/close: r/x/close: broken", "0s failed r/x: r/x/close: broken", "0s not started r/next", "0s failed r: r/x/close: broken"},
		},
		"cancelled": {
			root:   branch("r", leaf("a", func(ctx context.Context) error { <-ctx.Done(); return nil }), closes(leaf("close", work))),
			cancel: 1 * second,
			events: []string{"0s started r", "0s started r/a", "1s done r/a", "1s not started r/close", "1s stopped r"},
			err:    "not started: r/close: context canceled", kind: fault.Interrupted,
		},
	}
	must.Each(t, stories, inBubble)
}

func alone(s step.Step) step.Step {
	s.Alone = true
	return s
}

// A step that runs Alone has no sibling beside it, whatever the Limit is.
func TestAlone(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"before, between and behind": {
			root: limit(3, branch("r", alone(leaf("a", lasts(1*second))), leaf("b", lasts(2*second)), leaf("c", lasts(1*second)),
				alone(leaf("d", lasts(1*second))), leaf("e", work), alone(leaf("f", work)))),
			events: []string{
				"0s started r", "0s started r/a", "1s done r/a", "1s started r/b", "1s started r/c", "2s done r/c", "3s done r/b", "3s started r/d",
				"4s done r", "4s done r/d", "4s done r/e", "4s done r/f", "4s started r/e", "4s started r/f",
			},
		},
		"its failure starts no other": {
			root:   limit(2, branch("r", alone(leaf("a", refuses)), leaf("b", work), alone(leaf("c", work)))),
			events: []string{"0s failed r/a: r/a: no quorum", "0s failed r: r/a: no quorum", "0s not started r/b", "0s not started r/c", "0s started r", "0s started r/a"},
			kind:   fault.Refused,
		},
		"it is not started behind a failure": {
			root: limit(2, branch("r", leaf("a", then(lasts(1*second), refuses)), leaf("b", lasts(2*second)), alone(leaf("c", work)))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/b", "1s failed r/a: r/a: no quorum", "2s done r/b", "2s failed r: r/a: no quorum", "2s not started r/c",
			},
			kind: fault.Refused,
		},
	}
	must.Each(t, stories, inBubble)
}
