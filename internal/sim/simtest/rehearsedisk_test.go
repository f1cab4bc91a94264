package simtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
)

// TestRehearseBoth: where one node boots a prepared disk and another one the ISO, both are tried out on
// their host, each with what it boots alone.
func TestRehearseBoth(t *testing.T) {
	long(t)
	inLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.BootsDisks("auto")
		lab.setRoll("rehearse: {addresses: [127.42.7.251/24]}")
		whileOff(remove("bios"), discard("efidisk0"))(lab) // wk1
		lab.Patch(everywhere)
		var made []string
		lab.Recorder.Hooks(nil, func(call record.Call) {
			if call.Params["name"] == planning.ScratchName(scratchVM) && call.Params["ipconfig0"] != "" { // those that boot
				made = append(made, fmt.Sprintf("%s, scsi0 %t, medium %t, %s", call.Params["boot"], strings.Contains(call.Params["scsi0"], ",import-from=local:import/"), strings.Contains(call.Params["ide2"], ".iso"), call.Params["ipconfig0"]))
			}
		})
		rep, err := lab.rehearsing().Roll(t.Context(), planning.Policy{Only: []string{"wk1", "wk2"}})
		lab.Recorder.Hooks(nil, nil)
		must(t, err)
		want := []string{"order=ide2, scsi0 false, medium true, ip=127.42.7.251/24", "order=scsi0, scsi0 true, medium false, ip=127.42.7.251/24"}
		if slices.Sort(made); !cmp.Equal(want, made) {
			t.Errorf("made (-want +got):\n%s", cmp.Diff(want, made))
		}
		var seen []string
		for _, r := range rep.Rehearsed {
			seen = append(seen, fmt.Sprintf("%s %s, disk %t, at %s: %q", r.Nodes, r.Firmware, r.Disk != "", r.Addr, r.Unseen))
		}
		slices.Sort(seen)
		if diff := cmp.Diff([]string{`[wk1] SeaBIOS, q35, CPU host, disk false, at 127.42.7.251: ""`, `[wk2] OVMF, q35, CPU host, disk on scsi (virtio-scsi-single), disk true, at 127.42.7.251: ""`}, seen); diff != "" {
			t.Errorf("rehearsed (-want +got):\n%s", diff)
		}
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}

// TestRehearseADiskOn: a prepared disk is tried out on the bus of the node's system disk.
func TestRehearseADiskOn(t *testing.T) {
	for _, bus := range []string{"virtio", "sata"} {
		t.Run(bus, func(t *testing.T) {
			long(t)
			inLab(t, sim.Options{Workers: 1, DiskBus: bus}, func(t *testing.T, lab *Lab) {
				lab.BootsDisks("disk")
				lab.Patch(everywhere)
				var made record.Call
				lab.Recorder.Hooks(nil, func(call record.Call) {
					if call.Params["name"] == planning.ScratchName(scratchVM) {
						made = call
					}
				})
				rep, err := lab.rehearsing().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
				lab.Recorder.Hooks(nil, nil)
				must(t, err)
				if len(rep.Rehearsed) != 1 || rep.Rehearsed[0].Unseen != "" || !strings.Contains(made.Params[bus+"0"], ",import-from=") {
					t.Errorf("rehearsed %+v, made %v", rep.Rehearsed, made.Params)
				}
				lab.requireNoScratch()
				lab.RequireIntact()
			})
		})
	}
}

// TestRehearsalOfADiskLost: Proxmox's answer to every k-th change is lost, that to the import too.
func TestRehearsalOfADiskLost(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf[int64](1, 2, 3), func(t *testing.T, lab *Lab, k int64) {
		lab.BootsDisks("disk")
		lab.Patch(everywhere)
		lost := lab.loseEvery(k)
		rep, err := lab.rehearsing().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
		lab.Recorder.Hooks(nil, nil)
		if err != nil || len(rep.Rehearsed) != 1 || lost.Load() < 3 {
			t.Fatalf("report %+v, %d answers lost, error %v", rep, lost.Load(), err)
		}
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}

// TestRehearsalOfADiskLate: the scratch VM that a killed run had asked for is made, with its disk, while
// the next run makes its own one, or starts it. Whoever comes after that deletes what is left.
func TestRehearsalOfADiskLate(t *testing.T) {
	makes := withParam("/qemu", "import-from=")
	eachLong(t, oneWorker(), map[string]struct {
		then func(record.Call) bool
		left int
	}{
		"at once":      {makes, 1},
		"then a start": {toVM("POST", "/qemu/9099/status/start"), 0},
	}, func(t *testing.T, lab *Lab, s struct {
		then func(record.Call) bool
		left int
	},
	) {
		lab.BootsDisks("disk")
		lab.setRoll("rehearse: {enabled: true}")
		lab.Patch(everywhere)
		only := planning.Policy{Only: []string{"wk1"}}
		x := lab.rollKilledBy(makes, only)
		x.deliverBefore(s.then, 0)
		must(t, lab.second().roll(only)(t.Context()))
		x.deliver()
		lab.Recorder.Hooks(nil, nil)
		if left := lab.scratches(); x.said == "" || len(left) != s.left {
			t.Errorf("left %q, late %q", left, x.said)
		}
		must(t, errOf(lab.second().pruneDisks(t.Context(), -1, nil)))
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}
