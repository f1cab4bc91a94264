package simtest

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// withParam is a change by Proxmox with that value of a parameter.
func withParam(path, value string) func(record.Call) bool {
	return func(call record.Call) bool {
		if call.Proto != "proxmox" || !call.Mutation || !strings.HasSuffix(call.Path, path) {
			return false
		}
		for _, is := range call.Params {
			if strings.Contains(is, value) {
				return true
			}
		}
		return false
	}
}

// TestPreparedLost: Proxmox's answer to every k-th change is lost, that to the import too.
func TestPreparedLost(t *testing.T) {
	eachLong(t, twoWorkers, storiesOf[int64](1, 2, 3), func(t *testing.T, lab *Lab, k int64) {
		lab.BootsDisks("disk")
		lab.Patch(sim.PatchedExtension)
		lost := lab.loseEvery(k)
		rep, err := lab.Client().Roll(t.Context(), planning.Policy{})
		lab.Recorder.Hooks(nil, nil)
		if err != nil || rep.Outcome != "done" || lost.Load() < 3 {
			t.Fatalf("report %+v, %d answers lost, error %v", rep, lost.Load(), err)
		}
		lab.requireRolled(t)
	})
}

// TestPreparedLate: what a killed run had sent for a prepared disk is processed while the next one is at
// work: before its own import, before the disk changes hands, before the VM starts.
func TestPreparedLate(t *testing.T) {
	long(t)
	type story struct {
		strategy   cluster.Strategy
		held, then func(record.Call) bool
	}
	imports, grows, given := withParam("/config", "import-from="), withParam("/resize", "scsi"), withParam("/move_disk", "scsi29")
	moves, starts := withParam("/move_disk", "scsi0"), toVM("POST", "/qemu/9031/status/start")
	eachInLab(t, oneWorker(), map[string]story{
		"the import, at once":      {cluster.Recreate, imports, imports},
		"the import, then a move":  {cluster.Recreate, imports, moves},
		"the import, then a start": {cluster.Recreate, imports, starts},
		"the import of a reimage":  {cluster.Reimage, imports, starts},
		"its growth, then a move":  {cluster.Recreate, grows, moves},
		"the disk, at once":        {cluster.Recreate, given, given},
		"the disk, then a start":   {cluster.Recreate, given, starts},
		"the disk of a reimage":    {cluster.Reimage, given, starts},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.BootsDisks("disk")
		strategy(s.strategy)(lab)
		lab.Patch(sim.PatchedExtension)
		before := lab.Disks()
		x := lab.rollKilledBy(s.held, planning.Policy{})
		x.deliverBefore(s.then, 0)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		x.deliver()
		lab.Recorder.Hooks(nil, nil)
		if x.said == "" {
			t.Error("nothing came late")
		}
		requireInSync(t, lab)
		lab.requireRolledFrom(t, before)
		lab.requireKept(1)
	})
}

// TestPreparedGone: someone takes the prepared disk away while the node is down: what is left to do is
// said, and the old system disk comes back.
func TestPreparedGone(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.BootsDisks("disk")
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		c.killedAt(t, moment{server: "/qemu/9031 DELETE"}, c.roll(planning.Policy{}))
		park := lab.parkingID(t)
		lab.configure(world.ChangeRequest{ID: park, Set: map[string]string{"protection": "0"}})
		lab.configure(world.ChangeRequest{ID: park, Delete: []string{"scsi29"}})
		err := lab.second().roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Refused, "scsi29")
		if hints := strings.Join(fault.Hints(err), "; "); !strings.Contains(hints, "recast undo wk1") {
			t.Errorf("hints %q", hints)
		}
		must(t, errOf(lab.second().Recover(t.Context(), "wk1")))
		lab.requireServing("wk1")
	})
}
