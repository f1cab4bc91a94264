package simtest

import (
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// spaceLeave shrinks the storage of the disks so that bytes are free.
func spaceLeave(lab *Lab, bytes int64) {
	lab.t.Helper()
	for _, s := range lab.World.Storages("pve1") {
		if s.ID == sim.DiskStorage {
			lab.World.SetCapacity(s.ID, s.Used+bytes)
			return
		}
	}
	lab.t.Fatal("there is no storage for disks")
}

// TestARollNeedsRoomForTheNewDisks: the old system disks stay parked, so a roll without
// space for the new ones does not begin; once prune has freed the older ones it does.
func TestARollNeedsRoomForTheNewDisks(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.World.Preallocate(sim.DiskStorage)
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		lab.Patch(sim.PatchedExtension)
		spaceLeave(lab, 9<<30)
		before := len(lab.Recorder.Calls())
		const want = "storage fast on pve1 has 9216 MiB free, but a new system disk takes 10 GiB there while the old one stays parked"
		requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), "wk1: "+want)
		for _, call := range lab.Recorder.Calls()[before:] {
			if call.Mutation && !ofClaim(call) {
				t.Errorf("the refused roll sent %s %s %s all the same", call.Proto, call.Method, call.Path)
			}
		}
		if got := problems(diagnosis(t, lab.Client())); len(got) == 0 || !strings.Contains(strings.Join(got, "\n"), "room for system disks on fast of pve1: "+want) {
			t.Errorf("doctor says %q", got)
		}
		must(t, errOf(lab.Client().pruneDisks(t.Context(), 0, nil)))
		must(t, lab.as("20000102-0000-feed").roll(onlyWorker)(t.Context()))
		lab.RequireIntact()
	})
}

// TestHandOverOnABusyStorage: a rename that fails on a busy storage is retried, each time
// after a check whether it has happened.
func TestHandOverOnABusyStorage(t *testing.T) {
	long(t)
	type story struct {
		storage     string
		strategy    cluster.Strategy
		step        string // which waits
		move, times int
		fault       world.RenameFault
	}
	options := func(s story) sim.Options { return sim.Options{ControlPlanes: 1, Workers: 1, DiskType: s.storage} }
	eachIn(t, options, map[string]story{
		"zfs, while parking":                {"zfspool", cluster.Recreate, "take-down/park/scsi1", parksData, 5, world.RenameBusy},
		"zfs, too slow":                     {"zfspool", cluster.Recreate, "take-down/park/scsi0", parksSystem, 1, world.RenameTimeout},
		"zfs, too slow, but it was renamed": {"zfspool", cluster.Recreate, "take-down/park/scsi1", parksData, 1, world.RenameTimeoutDone},
		"ceph, while giving back":           {"rbd", cluster.Recreate, "bring-up/attach/scsi1", attachesData, 3, world.RenameBusy},
		"files, reimage":                    {"dir", cluster.Reimage, "take-down/park/scsi0", 1, 4, world.RenameBusy},
	}, func(t *testing.T, lab *Lab, s story) {
		resumption{strategy: s.strategy}.prepare(lab)
		lab.beforeMove(s.move, func() { lab.World.BusyStorage(sim.DiskStorage, s.times, s.fault) })
		var said []string
		c := lab.Client()
		c.Emit = notes(s.step, &said)
		must(t, c.roll(onlyWorker)(t.Context()))
		if !strings.Contains(strings.Join(said, "\n"), "its storage is busy: tried again for 5m0s at most") {
			t.Errorf("the reason of the wait is not shown: %q", said)
		}
		requireInSync(t, lab, "cp1")
		lab.requireKept(1)
	})
}

// TestHandOverOnAStorageThatStaysBusy: it fails after some minutes with a hint, and the
// same command continues.
func TestHandOverOnAStorageThatStaysBusy(t *testing.T) {
	long(t)
	o := oneWorker()
	o.DiskType = "zfspool"
	inLab(t, o, func(t *testing.T, lab *Lab) {
		resumption{strategy: cluster.Recreate}.prepare(lab)
		var since time.Time
		lab.beforeMove(parksData, func() {
			since = time.Now()
			lab.World.BusyStorage(sim.DiskStorage, -1, world.RenameBusy)
		})
		err := lab.Client().roll(onlyWorker)(t.Context())
		took := time.Since(since)
		if fault.CodeOf(err) != fault.StorageBusy || !strings.Contains(err.Error(), "dataset is busy") {
			t.Fatalf("err = %v, code %s", err, fault.CodeOf(err))
		}
		if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, "lsof") || !strings.Contains(hints, "same command again") {
			t.Errorf("hints: %s", hints)
		}
		if took < 3*time.Minute || took > 7*time.Minute {
			t.Errorf("it was tried for %s", took)
		}
		lab.Recorder.Hooks(nil, nil)
		lab.World.NoMoreFailures()
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		requireInSync(t, lab, "cp1")
		lab.requireKept(1)
	})
}
