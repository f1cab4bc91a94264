package simtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
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
	var points []string
	synctest.Test(t, func(t *testing.T) {
		lab := prepared(t)
		var err error
		points, _, err = lab.rollKilled(t.Context(), workers, 0, "")
		must(t, err)
		lab.requireNoSurge(t)
	})
	chosen := crash{whole: whole{strategy: cluster.Create}}.slice(len(points))
	for _, at := range chosen {
		t.Run(strconv.Itoa(at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lab := prepared(t)
				c, stop := lab.watchCapacity(t.Context())
				if _, _, err := lab.rollKilled(t.Context(), workers, at, ""); err == nil {
					t.Fatal("killed, yet the roll says that it succeeded")
				}
				if at%2 == 0 {
					must(t, os.RemoveAll(filepath.Join(lab.Dir, ".recast")))
				}
				_, broken, err := lab.rollKilled(t.Context(), planning.Policy{}, 0, "")
				if err != nil || len(broken) > 0 {
					t.Fatalf("killed at %q: the next roll: %v, %q", points[at-1], err, broken)
				}
				stop()
				if c.early || c.least < 1 {
					t.Errorf("killed at %q: at least %d served, drained too early %t", points[at-1], c.least, c.early)
				}
				requireInSync(t, lab)
				lab.requireNoSurge(t)
			})
		})
	}
	t.Attr("killed", fmt.Sprint(len(chosen)))
}
