package wait_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/wait"
)

// looks returns one answer after the other, then repeats the last one.
func looks(answers ...answer) wait.Look {
	return func(context.Context) (bool, string, error) {
		a := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		return a.done, a.seen, a.err
	}
}

type answer struct {
	done bool
	seen string
	err  error
}

var errRefused = errors.New("connection refused")

func TestUntil(t *testing.T) {
	t.Parallel()
	cases := map[string]untilCase{
		"done at once": {look: looks(answer{done: true})},
		"done after a while": {
			look: looks(answer{seen: "0 of 3"}, answer{err: errRefused}, answer{seen: "2 of 3"}, answer{seen: "2 of 3"}, answer{done: true, seen: "3 of 3"}),
			took: 4 * time.Second, seen: []string{"0 of 3", "connection refused", "2 of 3"},
		},
		"done with an error is not done": {
			look: looks(answer{done: true, err: errRefused}, answer{done: true}),
			took: 1 * time.Second, seen: []string{"connection refused"},
		},
		"timeout": {
			look: looks(answer{seen: "0 of 3"}, answer{seen: "2 of 3"}),
			err:  "members: gave up after 10s; last seen: 2 of 3: context deadline exceeded", is: context.DeadlineExceeded,
			took: 10 * time.Second, seen: []string{"0 of 3", "2 of 3"},
		},
		"nothing ever seen": {
			look: looks(answer{}),
			err:  "members: gave up after 10s; last seen: nothing yet: context deadline exceeded", is: context.DeadlineExceeded,
			took: 10 * time.Second,
		},
		"no more answers": {
			look: looks(answer{seen: "2 of 3"}, answer{err: errRefused}),
			err:  "members: gave up after 10s; last seen: 2 of 3; then connection refused: context deadline exceeded", is: context.DeadlineExceeded,
			took: 10 * time.Second, seen: []string{"2 of 3", "connection refused"},
		},
		"cancelled": {
			look: looks(answer{seen: "0 of 3"}), cancel: 2500 * time.Millisecond,
			err: "members: gave up after 3s; last seen: 0 of 3: context canceled", is: context.Canceled,
			took: 2500 * time.Millisecond, seen: []string{"0 of 3"},
		},
		"an error that no waiting mends": {
			look: looks(answer{seen: "0 of 3"}, answer{err: fmt.Errorf("task: %w", wait.Stop(errRefused))}),
			err:  "members: connection refused", is: errRefused,
			took: 1 * time.Second, seen: []string{"0 of 3"},
		},
		"an answer cut short by the deadline is not what was seen": {
			look: cutShort(5*time.Second, func(err error) error { return err }),
			err:  "members: gave up after 10s; last seen: 1 of 3: context deadline exceeded", is: context.DeadlineExceeded,
			took: 10 * time.Second, seen: []string{"1 of 3"},
		},
		"one that would have ended the wait is no better": {
			look: cutShort(5*time.Second, stops),
			err:  "members: gave up after 10s; last seen: 1 of 3: context deadline exceeded", is: context.DeadlineExceeded,
			took: 10 * time.Second, seen: []string{"1 of 3"},
		},
		"but where nothing was seen it says more": {
			look: cutShort(10*time.Second, stops),
			err:  "members: list members: context deadline exceeded", is: context.DeadlineExceeded,
			took: 10 * time.Second,
		},
	}
	must.Bubbles(t, cases, func(t *testing.T, c untilCase) { c.check(t) })
}

// cutShort sees 1 of 3 until that time before the deadline; then the deadline cuts its answer short, which is the
// error that how makes of it.
func cutShort(before time.Duration, how func(error) error) wait.Look {
	return func(ctx context.Context) (bool, string, error) {
		if deadline, _ := ctx.Deadline(); time.Until(deadline) > before {
			return false, "1 of 3", nil
		}
		<-ctx.Done()
		return false, "", how(ctx.Err())
	}
}

func stops(err error) error { return wait.Stop(fmt.Errorf("list members: %w", err)) }

type untilCase struct {
	look   wait.Look
	cancel time.Duration
	err    string
	is     error
	took   time.Duration
	seen   []string
}

func (c untilCase) check(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if c.cancel > 0 {
		defer time.AfterFunc(c.cancel, cancel).Stop()
	}
	var seen []string
	w := wait.For{
		Name: "members", Every: time.Second, Timeout: 10 * time.Second,
		Seen: func(s string) { seen = append(seen, s) },
	}
	start := time.Now()
	err := wait.Until(ctx, w, c.look)
	took := time.Since(start)
	must.Hold(t, took == c.took, "took %s, want %s", took, c.took)
	must.Hold(t, must.Text(err) == c.err && errors.Is(err, c.is), "err = %v, want %q", err, c.err)
	must.Equal(t, "seen", c.seen, seen)
}

// A wait with a first pause looks often at its start and around its expected end, and later as rarely as others.
func TestUntilPauses(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	first := func(n time.Duration) wait.For { return wait.For{First: n, Every: time.Second} }
	type row struct {
		w    wait.For
		want []time.Duration // when it looked
	}
	cases := map[string]row{
		"none":                 {first(0), []time.Duration{0, 1000 * ms, 2000 * ms, 3000 * ms}},
		"grown up to Every":    {first(1000 * ms), []time.Duration{0, 1000 * ms, 2000 * ms, 3000 * ms}},
		"a quarter":            {first(400 * ms), []time.Duration{0, 400 * ms, 800 * ms, 1200 * ms, 1600 * ms, 2000 * ms, 2500 * ms, 3125 * ms}},
		"never more than that": {wait.For{First: 100 * ms, Every: 40 * ms}, []time.Duration{0, 40 * ms, 80 * ms, 120 * ms}},
		"expected": {
			wait.For{First: 10 * ms, Every: time.Second, Expected: 1280 * ms},
			[]time.Duration{1000 * ms, 1280 * ms, 1290 * ms, 1300 * ms, 1320 * ms, 1360 * ms, 1440 * ms, 1600 * ms, 1920 * ms, 2400 * ms},
		},
		"due": {wait.For{First: 10 * ms, Every: time.Second, Due: func() time.Duration { return 700 * ms }}, []time.Duration{0, 700 * ms, 1400 * ms}},
	}
	must.Bubbles(t, cases, func(t *testing.T, c row) {
		start := time.Now()
		var got []time.Duration
		must.Do(t, wait.Until(t.Context(), c.w, func(context.Context) (bool, string, error) {
			got = append(got, time.Since(start))
			return len(got) == len(c.want), "running", nil
		}))
		must.Equal(t, "looked", c.want, got)
	})
}

// A watch makes the wait look at once, and otherwise rarely. If it is lost, the wait looks too, restarts
// it, and until then looks as often as without watches; the wait returns after all watches have ended.
func TestUntilWatches(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		start := time.Now()
		begun := 0
		watch := func(ctx context.Context, tell func(bool)) error {
			begun++
			if begun == 2 {
				return errors.New("refused") // and not in place before
			}
			tell(true)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(7 * time.Second):
			}
			tell(true)
			if begun == 1 {
				return errors.New("lost")
			}
			<-ctx.Done()
			time.Sleep(time.Minute) // the wait waits for that
			return ctx.Err()
		}
		var got []time.Duration
		w := wait.For{Name: "Ready", Every: time.Second, Watched: 4 * time.Second, Watches: []wait.Watch{watch}}
		err := wait.Until(t.Context(), w, func(context.Context) (bool, string, error) {
			got = append(got, time.Since(start))
			return time.Since(start) >= 20*time.Second, "", nil
		})
		s := time.Second
		want := []time.Duration{0, 0, s, 2 * s, 4 * s, 7 * s, 7 * s, 8 * s, 8 * s, 9 * s, 10 * s, 12 * s, 15 * s, 16 * s, 17 * s, 19 * s, 23 * s}
		must.Do(t, err)
		must.Equal(t, "looked", want, got)
		must.Equal(t, "begun", 3, begun)
		must.Hold(t, time.Since(start) >= 80*time.Second, "the wait did not wait for its watch to end")
	})
}

// A watch that reports a change and ends, each time, does not cause constant looks.
func TestUntilWatchesThatEnd(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		looked, start := 0, time.Now()
		w := wait.For{Name: "Ready", Every: time.Second, Watches: []wait.Watch{func(_ context.Context, tell func(bool)) error {
			tell(true)
			return errors.New("cut off")
		}}}
		err := wait.Until(t.Context(), w, func(context.Context) (bool, string, error) {
			looked++
			return looked > 100 || time.Since(start) >= 10*time.Second, "", nil
		})
		must.Hold(t, err == nil && looked <= 33, "%d looks in %s: %v", looked, time.Since(start), err)
	})
}

// Without a timeout only the context ends a wait; its cause is in the error.
func TestUntilContextCause(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		lost := errors.New("claim lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		defer time.AfterFunc(24*time.Hour, func() { cancel(lost) }).Stop()
		err := wait.Until(ctx, wait.For{Name: "VM off", Every: time.Minute}, looks(answer{seen: "running"}))
		want := "VM off: gave up after 24h0m0s; last seen: running: claim lost"
		must.Hold(t, must.Text(err) == want && errors.Is(err, lost), "err = %v, want %q", err, want)
	})
}

func TestAll(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		asks := func(lasts time.Duration, err error) func() error {
			return func() error {
				time.Sleep(lasts)
				return err
			}
		}
		began := time.Now()
		err := wait.All(asks(2*time.Second, errors.New("first")), asks(3*time.Second, nil), asks(time.Second, errors.New("last")))
		took := time.Since(began)
		must.Hold(t, took == 3*time.Second && err != nil && err.Error() == "first\nlast", "%v after %s", err, took)
		must.Do(t, errors.Join(wait.All(asks(0, nil), asks(0, nil)), wait.Stop(nil)))
		var answer int
		var later error
		must.Do(t, wait.All(wait.Aside(&later, wait.Into(&answer, func() (int, error) { return 7, errors.New("later") }))))
		must.Hold(t, answer == 7 && later != nil, "%d, %v", answer, later)
	})
}
