package simtest

import (
	"fmt"
	"regexp"
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
				s := newForeignExchange(t, foreignWay{cluster.Recreate, false, false})
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

// advised are the commands in hints.
var advised = regexp.MustCompile(`qm disk move \d+ \w+ --target-vmid OTHER --target-disk KEY|qm set \d+ --delete [a-z]+\d+`)

// TestAdviceKeepsAForeignDisk: a person attaches a disk to a VM during its exchange, and
// then types only what the hints say: their disk stays, and the exchange completes.
func TestAdviceKeepsAForeignDisk(t *testing.T) {
	long(t)
	created := foreignMoment{is: func(c record.Call) bool { return c.Params["vmid"] == strconv.Itoa(matrixVM) }, after: true}
	parked := foreignMoment{is: func(c record.Call) bool { return strings.HasSuffix(c.Path, "/move_disk") }, after: true}
	for name, c := range map[string]struct {
		at      foreignMoment
		detach  bool   // as the page says
		refused string // then
	}{
		"the new VM":           {at: created, refused: "has scsi5"},
		"the new VM, detached": {at: created, detach: true},
		"the old VM":           {at: parked, refused: "has scsi5"},
		"the old VM, detached": {at: parked, detach: true, refused: "has unused0"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newForeignExchange(t, foreignWay{cluster.Recreate, false, false})
				came, err := s.disturbed(t.Context(), t, c.at, func() { must(t, errOf(s.play(foreignActNamed("adds a disk")))) })
				if came && err != nil && !strings.Contains(err.Error(), "has scsi5") {
					err = s.again(t.Context()) // their command crossed a change of ours
				}
				if !came || err == nil || !strings.Contains(err.Error(), "has scsi5") {
					t.Fatalf("came %t, err = %v", came, err)
				}
				shell := sim.Shell{World: s.world, Host: s.host}
				must(t, s.defineStranger())
				if c.detach {
					s.typed(t, shell, fmt.Sprintf("qm set %d --protection 0", s.vm))
					s.typed(t, shell, fmt.Sprintf("qm set %d --delete scsi5", s.vm))
					err = s.again(t.Context())
				}
				if c.refused == "" {
					must(t, err)
				} else {
					if err == nil || !strings.Contains(err.Error(), c.refused) {
						t.Fatalf("err = %v", err)
					}
					for _, command := range advised.FindAllString(strings.Join(fault.Hints(err), "\n"), -1) {
						s.typed(t, shell, command)
					}
					must(t, s.again(t.Context()))
				}
				must(t, s.ended())
				s.requireNothingElse(t, nil, "in the end")
			})
		})
	}
}

// typed runs a command from a hint, with one of their VMs in place of OTHER.
func (s *foreignScene) typed(t *testing.T, shell sim.Shell, command string) {
	t.Helper()
	filled := strings.NewReplacer("OTHER", strconv.Itoa(foreignVM), "KEY", "scsi5").Replace(command)
	if said, err := shell.Run(strings.Fields(filled)); err != nil {
		t.Fatalf("%s: %v\n%s", filled, err, said)
	}
}
