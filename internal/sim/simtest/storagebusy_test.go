package simtest

import (
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestHandOverOnABusyStorage: a rename that fails on a busy storage is retried, each time
// after a check whether it has happened.
func TestHandOverOnABusyStorage(t *testing.T) {
	long(t)
	type busy struct {
		move, times int
		fault       world.RenameFault
	}
	for name, c := range map[string]struct {
		storage  string
		strategy cluster.Strategy
		busy     busy
		step     string // which waits
	}{
		"zfs, while parking":                {"zfspool", cluster.Recreate, busy{parksData, 5, world.RenameBusy}, "take-down/park/scsi1"},
		"zfs, too slow":                     {"zfspool", cluster.Recreate, busy{parksSystem, 1, world.RenameTimeout}, "take-down/park/scsi0"},
		"zfs, too slow, but it was renamed": {"zfspool", cluster.Recreate, busy{parksData, 1, world.RenameTimeoutDone}, "take-down/park/scsi1"},
		"ceph, while giving back":           {"rbd", cluster.Recreate, busy{attachesData, 3, world.RenameBusy}, "bring-up/attach/scsi1"},
		"files, reimage":                    {"dir", cluster.Reimage, busy{1, 4, world.RenameBusy}, "take-down/park/scsi0"},
	} {
		t.Run(name, func(t *testing.T) {
			o := oneWorker()
			o.DiskType = c.storage
			inLab(t, o, func(t *testing.T, lab *Lab) {
				resumption{strategy: c.strategy}.prepare(lab)
				lab.beforeMove(c.busy.move, func() { lab.World.BusyStorage(sim.DiskStorage, c.busy.times, c.busy.fault) })
				var said []string
				client := lab.Client()
				client.Emit = notes(c.step, &said)
				must(t, client.roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
				if !strings.Contains(strings.Join(said, "\n"), "its storage is busy: tried again for 5m0s at most") {
					t.Errorf("the reason of the wait is not shown: %q", said)
				}
				requireInSync(t, lab, "cp1")
				lab.requireKept(1)
			})
		})
	}
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
		_, err := lab.Client().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
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
		must(t, lab.Client().roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
		requireInSync(t, lab, "cp1")
		lab.requireKept(1)
	})
}
