package simtest

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
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
					requireError(t, err, c.refused)
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

// preparedActs are what others do to the new system disk while it is prepared on the parking VM. None of
// it loses anything: it can be made again.
func preparedActs() []foreignAct {
	return []foreignAct{
		{name: "detaches the prepared disk", on: ofPrepared, do: func(s *foreignScene, vm world.VM, key string) (func(), error) {
			volid, _, _ := strings.Cut(vm.Config[key], ",")
			return func() { s.takesAway(vm.ID, volid) }, s.detach(vm.ID, key)
		}},
		{name: "deletes the prepared disk", on: ofPrepared, do: deletesPrepared},
		{name: "resizes the prepared disk", on: ofPrepared, do: func(s *foreignScene, vm world.VM, key string) (func(), error) {
			return nil, s.task(s.world.Resize("", s.host, world.ResizeRequest{ID: vm.ID, Disk: key, Size: "+1G"}))
		}},
		{name: "moves the prepared disk to another storage", on: ofPrepared, do: movesForeign},
		{name: "reassigns the prepared disk", on: ofPrepared, do: func(s *foreignScene, vm world.VM, key string) (func(), error) {
			if err := s.defineStranger(); err != nil {
				return nil, err
			}
			return nil, s.task(s.world.MoveDisk("", s.host, world.MoveRequest{ID: vm.ID, Disk: key, Target: foreignVM, TargetDisk: "scsi1"}))
		}},
		{name: "boots the prepared disk first", on: ofPrepared, do: func(s *foreignScene, vm world.VM, key string) (func(), error) {
			return nil, s.change(vm.ID, map[string]string{"boot": "order=" + key})
		}},
	}
}

// ofPrepared finds the prepared disk on the parking VM.
func ofPrepared(s *foreignScene) (vm world.VM, key string, err error) {
	vm, err = s.look(s.parking())
	if err != nil {
		return vm, "", err
	}
	rec, _, err := parking.ReadRecord(cluster.VM{Config: vm.Config})
	if err != nil {
		return vm, "", err
	}
	entry, known := rec.SpareEntry(rec.Run, rec.SpareKey)
	if !known || vm.Config[entry.Key] == "" {
		return vm, "", errors.New("no prepared disk is on the parking VM")
	}
	return vm, entry.Key, nil
}

// takesAway gives a detached volume of a VM to one of theirs.
func (s *foreignScene) takesAway(id int, volid string) {
	vm, err := s.look(id)
	if err != nil || s.defineStranger() != nil {
		return
	}
	for key, value := range vm.Config {
		if value == volid {
			s.task(s.world.MoveDisk("", s.host, world.MoveRequest{ID: id, Disk: key, Target: foreignVM, TargetDisk: "scsi1"}))
		}
	}
}

func deletesPrepared(s *foreignScene, vm world.VM, key string) (func(), error) {
	volid, _, _ := strings.Cut(vm.Config[key], ",")
	if err := errors.Join(s.change(vm.ID, map[string]string{"protection": "0"}), s.change(vm.ID, nil, key)); err != nil {
		return nil, err
	}
	now, err := s.look(vm.ID)
	for unused, value := range now.Config {
		if value == volid {
			err = errors.Join(err, s.change(vm.ID, nil, unused))
		}
	}
	return nil, err
}

// newForeignRoll is a lab whose worker a whole roll replaces.
func newForeignRoll(t *testing.T, way foreignWay) (s *foreignScene, lab *Lab) {
	t.Helper()
	lab = New(t, sim.Options{ControlPlanes: 1, Workers: 1, Holder: way.holder})
	s = &foreignScene{
		world: lab.World, recorder: lab.Recorder, way: way, host: "pve1", vm: wk1, holder: 9201, park: claimVM + 2,
		disk: "data-wk1", storage: sim.DiskStorage,
	}
	if way.strategy == cluster.Recreate || way.strategy == cluster.Reimage {
		lab.setRoll("strategy: " + string(way.strategy))
	}
	if way.prepared {
		lab.BootsDisks(cluster.BootFromDisk)
	}
	lab.Patch(sim.PatchedExtension)
	c := lab.as(secondRun)
	c.Emit = s.listen
	s.act = c.roll(planning.Policy{})
	s.again = func(context.Context) error {
		time.Sleep(time.Minute)
		err := lab.rollInTime(t, thirdRun)
		if err == nil {
			requireDrift(t, lab)
		}
		return err
	}
	s.cancel = lab.as(secondRun).giveUp("wk1")
	s.ended = func() error { return nil }
	switch way.strategy {
	case cluster.Rollback:
		must(t, lab.rollInTime(t, firstRun))
		s.act = c.goBack("wk1")
	case cluster.PutBack:
		lab.as(firstRun).rollKilled(after("bring-up/start"), planning.Policy{})
		s.act = func(ctx context.Context) error {
			_, err := c.Recover(ctx, "wk1")
			return err
		}
	default:
		must(t, c.Publish(t.Context()))
	}
	return s, lab
}

// TestForeignHandsInARoll is TestForeignHands for a whole roll of a worker, with a machine
// in the VM.
func TestForeignHandsInARoll(t *testing.T) {
	long(t)
	for _, way := range foreignWays() {
		t.Run(way.String(), func(t *testing.T) {
			foreignHands(t, way, 6, func(t *testing.T, way foreignWay) *foreignScene {
				s, _ := newForeignRoll(t, way)
				return s
			})
		})
	}
}

// TestBackupIsWaitedOut runs a backup of the VM, or its parking VM, during a roll: the
// roll waits, says so, and completes.
func TestBackupIsWaitedOut(t *testing.T) {
	for _, c := range []struct {
		strategy cluster.Strategy
		act      string
		vm       int
		change   string // requested from Proxmox at that moment
	}{
		{cluster.Recreate, "backs the VM up", wk1, "/qemu/9031/status/shutdown"},
		{cluster.Recreate, "backs the VM up", wk1, "/qemu/9031/move_disk"},
		{cluster.Recreate, "backs the VM up", wk1, "/qemu/9031"},
		{cluster.Reimage, "backs the VM up", wk1, "/qemu/9031/status/start"},
		{cluster.Recreate, "backs the parking VM up", claimVM + 2, "/qemu/9031/move_disk"},
		{cluster.Reimage, "backs the parking VM up", claimVM + 2, "/qemu/9002/config"},
	} {
		t.Run(fmt.Sprintf("%s/%s before %s", c.strategy, c.act, strings.ReplaceAll(c.change, "/", " ")), func(t *testing.T) {
			long(t)
			inBubble(t, func(t *testing.T) {
				s, lab := newForeignRoll(t, foreignWay{c.strategy, false, false})
				at := foreignMoment{is: func(call record.Call) bool { return strings.HasSuffix(call.Path, c.change) }}
				came, err := s.disturbed(t.Context(), t, at, func() { must(t, errOf(s.play(foreignActNamed(c.act)))) })
				if !came || err != nil {
					t.Fatalf("came %t: %v", came, err)
				}
				if want := fmt.Sprintf("waiting for VM %d: it is locked (backup)", c.vm); !s.heard(want) {
					t.Errorf("it did not say %q", want)
				}
				requireDrift(t, lab)
				lab.requireKept(1)
				lab.RequireIntact()
			})
		})
	}
}
