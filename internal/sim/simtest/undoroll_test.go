package simtest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
)

// TestUndoRollByHand kills the roll of a worker and restores it by hand: it boots its old
// system and is a healthy node again. The next roll finds nothing to finish and rolls it
// again.
func TestUndoRollByHand(t *testing.T) {
	long(t)
	doc := readUndoDoc(t)
	for _, at := range []moment{after("park/scsi1"), after("delete-vm"), after("bring-up/start"), before("finish/keep")} {
		t.Run(at.String(), func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				resumption{strategy: cluster.Recreate}.prepare(lab)
				old := lab.builds()
				only := planning.Policy{Only: []string{"wk1"}}
				c := lab.as(firstRun)
				c.killedAt(t, at, c.roll(only))
				park := lab.parkingID(t)
				vm, err := lab.World.LookupVM("pve1", park)
				must(t, err)
				sh := &undoShell{Shell: lab.Shell("pve1")}
				must(t, doc.follow(sh, vm.Config["description"], park, 9031, func() {}))
				lab.World.Delay(3 * time.Minute) // it boots
				if diff := cmp.Diff(old, lab.builds()); diff != "" {
					t.Errorf("builds:\n%s", diff)
				}
				lab.RequireIntact()
				must(t, lab.as(secondRun).roll(only)(t.Context()))
				requireDrift(t, lab, "cp1")
				lab.requireKept(1)
				lab.RequireIntact()
			})
		})
	}
}
