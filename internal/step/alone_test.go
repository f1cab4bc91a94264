package step_test

import (
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

func alone(s step.Step) step.Step {
	s.Alone = true
	return s
}

// A step that runs Alone has no sibling beside it, whatever the Limit is.
func TestAlone(t *testing.T) {
	t.Parallel()
	stories := map[string]timedStory{
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
			err:    "r/a: no quorum", kind: fault.Refused,
		},
		"it is not started behind a failure": {
			root: limit(2, branch("r", leaf("a", then(lasts(1*second), refuses)), leaf("b", lasts(2*second)), alone(leaf("c", work)))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/b", "1s failed r/a: r/a: no quorum", "2s done r/b", "2s failed r: r/a: no quorum", "2s not started r/c",
			},
			err: "r/a: no quorum", kind: fault.Refused,
		},
	}
	for name, s := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, s.check)
		})
	}
}
