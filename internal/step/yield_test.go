package step_test

import (
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

func yields(s step.Step) step.Step {
	s.Yields = true
	return s
}

// A step that only waits does not delay the end of a stopped run.
func TestYields(t *testing.T) {
	t.Parallel()
	stories := map[string]timedStory{
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
			err: "r/wk1/wait: context canceled", kind: fault.Interrupted,
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
			err: "r/wk1/wait: context canceled\nr/wk2/bad: no quorum", kind: fault.Refused,
		},
	}
	for name, s := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, s.check)
		})
	}
}
