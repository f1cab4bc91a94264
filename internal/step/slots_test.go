package step_test

import (
	"testing"
	"testing/synctest"
)

func TestRunSlots(t *testing.T) {
	t.Parallel()
	stories := map[string]timedStory{
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
	for name, s := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, s.check)
		})
	}
}
