package step_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

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
	stories := map[string]timedStory{
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
			err: "r/bad: broken",
		},
		"one before it fails": {
			root:   branch("r", leaf("bad", fails), closes(leaf("close", work))),
			events: []string{"0s started r", "0s started r/bad", "0s failed r/bad: r/bad: broken", "0s not started r/close", "0s failed r: r/bad: broken"},
			err:    "r/bad: broken",
		},
		"it fails itself": {
			root:   branch("r", branch("x", closes(leaf("close", fails))), leaf("next", work)),
			events: []string{"0s started r", "0s started r/x", "0s started r/x/close", "0s failed r/x/close: r/x/close: broken", "0s failed r/x: r/x/close: broken", "0s not started r/next", "0s failed r: r/x/close: broken"},
			err:    "r/x/close: broken",
		},
		"cancelled": {
			root:   branch("r", leaf("a", func(ctx context.Context) error { <-ctx.Done(); return nil }), closes(leaf("close", work))),
			cancel: 1 * second,
			events: []string{"0s started r", "0s started r/a", "1s done r/a", "1s not started r/close", "1s stopped r"},
			err:    "not started: r/close: context canceled", kind: fault.Interrupted,
		},
	}
	for name, s := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, s.check)
		})
	}
}
