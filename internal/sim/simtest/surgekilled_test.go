package simtest

import (
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
)

// TestSurgeOfASavedPlan: a run of a saved plan that is killed goes on with the plan, to the same end.
func TestSurgeOfASavedPlan(t *testing.T) {
	eachLong(t, oneWorker(), map[string]string{
		"not killed": "", "when the surge node is made": "roll/surge/" + surgeNode + "/bring-up", "when it serves": "roll/workers/wk1/take-down",
		"when the worker is done": "roll/surge-end/" + surgeNode, "when its VM is gone": "roll/surge-end/" + surgeNode + "/keep",
	}, func(t *testing.T, lab *Lab, at string) {
		lab.AddSurge(1)
		lab.Patch(sim.PatchedExtension)
		saved := lab.save(planning.Policy{})
		if at != "" {
			lab.killSaved(saved, at)
		}
		must(t, lab.rollOf(saved))
		lab.requireNoSurge(t)
		requireInSync(t, lab)
	})
}

// TestSurgeKilled kills a roll with a surge node at points of every kind. The next roll, with the
// journal or without, comes to the same end.
func TestSurgeKilled(t *testing.T) {
	long(t)
	prepared := func(t *testing.T) *Lab {
		lab := New(t, oneWorker())
		lab.AddSurge(1)
		lab.Patch(sim.PatchedExtension)
		return lab
	}
	workers := planning.Policy{Only: []string{"wk1"}}
	var points []point
	synctest.Test(t, func(t *testing.T) {
		lab := prepared(t)
		points, _ = lab.finish(t, rolls(workers))
		lab.requireNoSurge(t)
	})
	for _, at := range chosenPoints(t, points) {
		t.Run(strconv.Itoa(at.at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lab := prepared(t)
				c, stop := lab.watchCapacity(t.Context())
				lab.diesAt(t, at, rolls(workers))
				if at.at%2 == 0 {
					lab.loseJournal()
				}
				lab.finish(t, rolls(planning.Policy{}))
				stop()
				if c.early || c.least < 1 {
					t.Errorf("killed at %s: at least %d served, drained too early %t", at, c.least, c.early)
				}
				requireInSync(t, lab)
				lab.requireNoSurge(t)
			})
		})
	}
}
