package step_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

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
	slices.SortStableFunc(l.log, func(a, b string) int {
		if d := at(a) - at(b); d != 0 {
			return int(d)
		}
		if a < b {
			return -1
		}
		return 1
	})
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

// timedStory is a story with the times of its events.
type timedStory struct {
	root   step.Step
	slots  map[string]int
	stop   time.Duration // when Stop is called
	cancel time.Duration // when the context is cancelled
	events []string      // those of the same instant in any order
	err    string
	kind   fault.Kind
}

func (s timedStory) check(t *testing.T) {
	t.Helper()
	got := newTimed()
	r := step.Runner{Emit: got.add, Slots: s.slots}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if s.stop > 0 {
		defer time.AfterFunc(s.stop, r.Stop).Stop()
	}
	if s.cancel > 0 {
		defer time.AfterFunc(s.cancel, cancel).Stop()
	}
	err := r.Run(ctx, s.root)
	want := timed{log: s.events}
	if diff := cmp.Diff(want.sorted(), got.sorted()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	checkError(t, err, s.err, s.kind)
}

func refuses(context.Context) error { return fault.Refusedf("no quorum") }

func sleepy(s step.Step, d time.Duration) step.Step {
	s.Skip = func(context.Context) (string, error) {
		time.Sleep(d)
		return "slept", nil
	}
	return s
}
