package simtest

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
)

// TestTheVMIDIsTaken: another person makes a VM under a number right before recast does:
// their VM is left alone. The parking VM takes the next number; a node's VM needs its own.
func TestTheVMIDIsTaken(t *testing.T) {
	long(t)
	for name, c := range map[string]struct {
		act  string
		vmid int
		err  string
	}{
		"of the VM":         {"takes the VMID", matrixVM, `VM 9011 "thief" on pve1 has UUID `},
		"of the parking VM": {"takes the VMID of the parking VM", matrixParking, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newForeignExchange(t, foreignWay{cluster.Recreate, false})
				var undo func()
				made := func(call record.Call) bool { return call.Params["vmid"] == strconv.Itoa(c.vmid) }
				came, err := s.disturbed(t.Context(), t, foreignMoment{is: made}, func() {
					var errAct error
					undo, errAct = s.play(foreignActNamed(c.act))
					must(t, errAct)
				})
				if !came {
					t.Fatal("it could not be taken")
				}
				if c.err == "" {
					must(t, err)
					if got := s.parking(); got != c.vmid+1 {
						t.Errorf("the parking VM is %d", got)
					}
				} else {
					if err == nil {
						t.Fatal("it continued with their VM")
					}
					requireForeignSaid(t, s, err)
					if err := s.again(t.Context()); fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), c.err) {
						t.Errorf("err = %v, want %q", err, c.err)
					}
					undo()
					must(t, s.again(t.Context()))
				}
				must(t, s.ended())
				s.requireNothingElse(t, nil, "in the end")
			})
		})
	}
}

// TestTwoNodesShareAHolder rolls two workers with data disks of one VM sequentially,
// although two may be down at a time, and leaves that VM unchanged.
func TestTwoNodesShareAHolder(t *testing.T) {
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		t.Run(string(strategy), func(t *testing.T) {
			long(t)
			inLab(t, sim.Options{ControlPlanes: 1, Workers: 2, Holder: true}, func(t *testing.T, lab *Lab) {
				lab.setRoll("strategy: "+string(strategy), "maxUnavailable: {workers: 2, perHost: 2}")
				lab.Patch(sim.PatchedExtension)
				before := fmt.Sprint(lab.vm(9201).Config)
				var together atomic.Bool
				lab.Recorder.Hooks(nil, func(record.Call) {
					open := 0
					for _, vm := range lab.World.VMs() {
						open += strings.Count(vm.Config["description"], `"open":true`)
					}
					if open == 2 {
						together.Store(true)
					}
				})
				must(t, lab.rollInTime(t, firstRun))
				lab.Recorder.Hooks(nil, nil)
				if together.Load() {
					t.Error("they were rolled at the same time")
				}
				lab.requireRolled(t)
				if after := fmt.Sprint(lab.vm(9201).Config); after != before {
					t.Errorf("the holder is %s, was %s", after, before)
				}
			})
		})
	}
}
