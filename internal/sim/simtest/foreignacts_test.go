package simtest

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// foreignAct is another person's act, as root@pam.
type foreignAct struct {
	name string
	// on finds the VM that it is about, and the drive with the data disk if it is about that.
	on func(s *foreignScene) (vm world.VM, key string, err error)
	// do fails if the act does not apply, or Proxmox refuses it. undo reverts it as far as
	// possible: what it leaves, the next run shows; nil: not needed.
	do func(s *foreignScene, vm world.VM, key string) (undo func(), err error)
	// destroys says that the worker can lose something for good, if only the name of its disk.
	destroys bool
}

// play plays an act, if there is what it is about.
func (s *foreignScene) play(act foreignAct) (undo func(), err error) {
	vm, key, err := act.on(s)
	if err != nil {
		return nil, err
	}
	return act.do(s, vm, key)
}

func foreignActNamed(name string) foreignAct {
	all := foreignActs(foreignWay{prepared: true})
	return all[slices.IndexFunc(all, func(act foreignAct) bool { return act.name == name })]
}

// editsForeign changes one key of a VM and reverts it later.
func editsForeign(key string, value func(old string) string) func(*foreignScene, world.VM, string) (func(), error) {
	return func(s *foreignScene, vm world.VM, _ string) (func(), error) {
		old, had := vm.Config[key]
		undo := func() { s.change(vm.ID, map[string]string{key: old}) }
		if !had {
			undo = func() { s.change(vm.ID, nil, key) }
		}
		return undo, s.change(vm.ID, map[string]string{key: value(old)})
	}
}

func ofVM(s *foreignScene) (world.VM, string, error)      { return s.found(s.vm) }
func ofParking(s *foreignScene) (world.VM, string, error) { return s.found(s.parking()) }
func ofHolder(s *foreignScene) (world.VM, string, error)  { return s.found(s.holder) }
func ofData(s *foreignScene) (world.VM, string, error)    { return s.dataKey() }

func (s *foreignScene) found(id int) (world.VM, string, error) {
	vm, err := s.look(id)
	return vm, "", err
}

func to(value string) func(string) string { return func(string) string { return value } }

func foreignActs(way foreignWay) []foreignAct {
	all := []foreignAct{
		{name: "edits the description", on: ofVM, do: editsForeign("description", func(old string) string { return old + "\nEdited." })},
		{name: "edits the memory", on: ofVM, do: editsForeign("memory", to("8192"))},
		{name: "adds a disk", on: ofVM, do: addsForeignDisk},
		{name: "detaches the data disk", on: ofData, do: detachesForeign},
		{name: "unprotects the parking VM", on: ofParking, do: func(s *foreignScene, vm world.VM, _ string) (func(), error) {
			return nil, s.change(vm.ID, map[string]string{"protection": "0"})
		}},
		{name: "spoils the record", on: ofParking, do: editsForeign("description", func(old string) string { return strings.Replace(old, `{"cluster"`, `{"cluster`, 1) })},
		{name: "removes the record", on: ofParking, do: editsForeign("description", to("Nothing to see."))},
		{name: "resizes the data disk", on: ofData, do: resizesForeign},
		{name: "moves the data disk to another storage", on: ofData, do: movesForeign},
		{name: "reassigns the data disk", on: ofData, do: reassignsForeign, destroys: true}, // its name: it may come back under another one
		{name: "attaches a volume of a pod", on: ofVM, do: attachesForeignPod},
		{name: "names the data disk twice", on: ofData, do: namesForeignTwice},
		{name: "names the data disk in another VM", on: ofData, do: func(s *foreignScene, _ world.VM, _ string) (func(), error) {
			return namesForeignTwice(s, world.VM{ID: foreignVM}, "")
		}},

		{name: "starts the VM", on: ofVM, do: startsForeign},
		{name: "starts the parking VM", on: ofParking, do: startsForeign},
		{name: "starts the holder", on: ofHolder, do: startsForeign},
		{name: "stops the VM", on: ofVM, do: stopsForeign},
		{name: "migrates the VM", on: ofVM, do: migratesForeign},
		{name: "migrates the parking VM", on: ofParking, do: migratesForeign},
		{name: "snapshots the VM", on: ofVM, do: snapshotsForeign},
		{name: "snapshots the parking VM", on: ofParking, do: snapshotsForeign},
		{name: "backs the VM up", on: ofVM, do: backsUpForeign},
		{name: "backs the parking VM up", on: ofParking, do: backsUpForeign},
		{name: "leaves a lock on the VM", on: ofVM, do: locksForeign},
		{name: "leaves a lock on the parking VM", on: ofParking, do: locksForeign},

		{name: "deletes the VM", on: ofVM, do: deletesForeign(false), destroys: true},
		{name: "deletes the VM and what is unreferenced", on: ofVM, do: deletesForeign(true), destroys: true},
		{name: "deletes the parking VM", on: ofParking, do: deletesForeign(false), destroys: true},
		{name: "deletes the parking VM and what is unreferenced", on: ofParking, do: deletesForeign(true), destroys: true},
		{name: "deletes the holder", on: ofHolder, do: deletesForeign(false), destroys: true},
		{name: "takes the VMID", on: func(s *foreignScene) (world.VM, string, error) { return world.VM{ID: s.vm}, "", nil }, do: takesForeign},
		{name: "takes the VMID of the parking VM", on: func(s *foreignScene) (world.VM, string, error) {
			return world.VM{ID: cmp.Or(s.parking(), s.park)}, "", nil // refused if it exists
		}, do: takesForeign},
	}
	if way.prepared {
		all = append(all, preparedActs()...)
	}
	return all
}

// foreignVM is a VM outside of the cluster.
const foreignVM = 9500

func (s *foreignScene) defineStranger() error {
	if _, err := s.look(foreignVM); err == nil {
		return nil
	}
	return s.world.DefineVM(s.host, foreignVM, map[string]string{"name": "stranger", "memory": "512"}, nil)
}

func (s *foreignScene) move(from int, key string, to int, toKey string) error {
	return s.task(s.world.MoveDisk("", s.host, world.MoveRequest{ID: from, Disk: key, Target: to, TargetDisk: toKey}))
}

// gives moves a disk into a VM outside of the cluster.
func (s *foreignScene) gives(from int, key, toKey string) error {
	if err := s.defineStranger(); err != nil {
		return err
	}
	return s.move(from, key, foreignVM, toKey)
}

// frees deletes a detached volume of a VM.
func (s *foreignScene) frees(id int, volid string) error {
	vm, err := s.look(id)
	for unused, value := range vm.Config {
		if value == volid {
			err = errors.Join(err, s.change(id, nil, unused))
		}
	}
	return err
}

// detach removes a drive from a VM; a protected VM does not allow it.
func (s *foreignScene) detach(id int, key string) error {
	vm, err := s.look(id)
	if err != nil {
		return err
	}
	if vm.Config["protection"] != "1" {
		return s.change(id, nil, key)
	}
	return errors.Join(
		s.change(id, map[string]string{"protection": "0"}), s.change(id, nil, key), s.change(id, map[string]string{"protection": "1"}),
	)
}

// addsForeignDisk adds a disk to the worker's VM, which is then protected like the others.
func addsForeignDisk(s *foreignScene, vm world.VM, _ string) (func(), error) {
	if err := s.change(vm.ID, map[string]string{"scsi5": s.storage + ":1,serial=theirs"}); err != nil {
		return nil, err
	}
	// Its owner moves it into another VM.
	return func() {
		d := s.diskNamed("theirs")
		if d.VMID != vm.ID {
			return
		}
		if !strings.HasPrefix(d.Key, "unused") {
			s.detach(vm.ID, d.Key)
			d = s.diskNamed("theirs")
		}
		s.gives(vm.ID, d.Key, "scsi5")
	}, s.protect(vm.ID, "scsi5", "theirs")
}

// protect makes the world guard another person's new disk.
func (s *foreignScene) protect(id int, key, serial string) error {
	vm, err := s.look(id)
	if err != nil {
		return err
	}
	volid, _, _ := strings.Cut(vm.Config[key], ",")
	s.world.Protect(world.Protected{Serial: serial, Media: s.world.Media(volid, s.host)})
	return nil
}

func detachesForeign(s *foreignScene, vm world.VM, key string) (func(), error) {
	value := vm.Config[key]
	return func() {
		now, err := s.look(vm.ID)
		volid, _, _ := strings.Cut(value, ",")
		if err == nil && now.Config[key] == "" && s.data().Volid == volid {
			s.change(vm.ID, map[string]string{key: value})
		}
	}, s.detach(vm.ID, key)
}

func resizesForeign(s *foreignScene, vm world.VM, key string) (func(), error) {
	return nil, s.task(s.world.Resize("", s.host, world.ResizeRequest{ID: vm.ID, Disk: key, Size: "+1G"}))
}

// movesForeign is move_disk to another storage, with delete=1.
func movesForeign(s *foreignScene, vm world.VM, key string) (func(), error) {
	if vm.Config["lock"] != "" || s.way.holder {
		return nil, errors.New("Proxmox does not let them")
	}
	s.world.AddStorage(world.Storage{ID: "slow", Type: "dir", Content: []string{"images"}})
	old, options, _ := strings.Cut(vm.Config[key], ",")
	volid, err := s.world.Alloc("slow", s.host, vm.ID, 20<<30, s.world.Media(old, s.host))
	if err != nil {
		return nil, err
	}
	for _, set := range []map[string]string{{"protection": "0"}, {key: volid + "," + options}} {
		if err := s.change(vm.ID, set); err != nil {
			return nil, err
		}
	}
	protection := cmp.Or(vm.Config["protection"], "0")
	return nil, errors.Join(s.frees(vm.ID, old), s.change(vm.ID, map[string]string{"protection": protection}))
}

func reassignsForeign(s *foreignScene, vm world.VM, key string) (func(), error) {
	if s.way.holder {
		return nil, errors.New("that would rename it under its holder")
	}
	return func() {
		for _, id := range []int{vm.ID, s.parking(), s.vm} {
			if _, err := s.look(id); err == nil && s.data().VMID == foreignVM {
				s.move(foreignVM, "scsi1", id, key)
				return
			}
		}
	}, s.gives(vm.ID, key, "scsi1")
}

// attachesForeignPod is what proxmox-csi does for a pod.
func attachesForeignPod(s *foreignScene, vm world.VM, _ string) (func(), error) {
	volid, err := s.world.AllocDisk("", s.host, world.AllocRequest{Storage: s.storage, VMID: 9999, Name: "vm-9999-pvc-1a2b.raw", Bytes: 1 << 30, Format: "raw"})
	if err != nil {
		return nil, err
	}
	s.world.Protect(world.Protected{Serial: "pvc-1a2b", Media: s.world.Media(volid, s.host)})
	return s.detaches(vm.ID, "scsi7"), s.change(vm.ID, map[string]string{"scsi7": volid + ",serial=pvc-1a2b"})
}

// detaches removes a drive if the VM still has it.
func (s *foreignScene) detaches(id int, key string) func() {
	return func() {
		if vm, err := s.look(id); err == nil && vm.Config[key] != "" {
			s.detach(id, key)
		}
	}
}

// namesForeignTwice names the data disk under a second key of its VM, or of another VM.
func namesForeignTwice(s *foreignScene, vm world.VM, _ string) (func(), error) {
	if err := s.defineStranger(); err != nil {
		return nil, err
	}
	return s.detaches(vm.ID, "scsi6"), s.change(vm.ID, map[string]string{"scsi6": s.data().Volid + ",serial=again"})
}

func startsForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	return func() {
		if !vm.Running && !(vm.ID == s.vm && s.finished()) { // a worker that is done is to run
			s.task(s.world.Stop("", s.host, vm.ID))
		}
	}, s.task(s.world.Start("", s.host, vm.ID))
}

func stopsForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	if !vm.Running {
		return nil, errors.New("it does not run")
	}
	return func() {
		if s.finished() {
			s.task(s.world.Start("", s.host, vm.ID))
		}
	}, s.task(s.world.Stop("", s.host, vm.ID))
}

// finished says whether the worker's replacement is.
func (s *foreignScene) finished() bool {
	park, err := s.look(s.parking())
	return err == nil && !strings.Contains(park.Config["description"], `"open":true`)
}

// migratesForeign migrates a VM with its disks to the other host. Holders' disks can't move.
func migratesForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	to := map[string]string{s.host: s.other, s.other: s.host}[vm.Host]
	move := func(from, to string) error {
		return s.task(s.world.Migrate("", from, world.MigrateRequest{ID: vm.ID, Target: to, Online: vm.Running, WithLocalDisks: vm.Running}))
	}
	return func() { move(to, vm.Host) }, move(vm.Host, to)
}

func snapshotsForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	return func() { s.world.DeleteSnapshot(vm.ID, "theirs") }, s.world.AddSnapshot(vm.ID, world.Snapshot{Name: "theirs"})
}

const foreignBackup = 3 * time.Minute

func backsUpForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	upid := s.world.StartBackup("", s.host, foreignBackup, vm.ID)
	undo := func() { s.world.WaitTask(upid) }
	for range 100 { // until it has its lock
		time.Sleep(100 * time.Millisecond)
		if now, err := s.look(vm.ID); err == nil && now.Config["lock"] == "backup" {
			return undo, nil
		}
	}
	return undo, fmt.Errorf("%s did not begin", upid)
}

func locksForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	if vm.Config["lock"] != "" {
		return nil, errors.New("it is locked already")
	}
	s.world.SetLock(vm.ID, "suspended")
	return func() { s.world.SetLock(vm.ID, "") }, nil
}

func deletesForeign(unreferenced bool) func(*foreignScene, world.VM, string) (func(), error) {
	return func(s *foreignScene, vm world.VM, _ string) (func(), error) {
		if vm.Running {
			return nil, errors.New("Proxmox does not delete a VM that runs")
		}
		if err := s.change(vm.ID, map[string]string{"protection": "0"}); err != nil {
			return nil, err
		}
		return nil, s.task(s.world.DestroyVM("", s.host, world.DestroyRequest{ID: vm.ID, Unreferenced: unreferenced}))
	}
}

// takesForeign creates another VM under a number that is free at that moment.
func takesForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	config := map[string]string{"name": "thief", "memory": "512", "scsi0": s.storage + ":1,serial=thief"}
	if err := s.task(s.world.CreateVM("", s.host, world.CreateRequest{ID: vm.ID, Config: config})); err != nil {
		return nil, err
	}
	return func() {
		s.gives(vm.ID, "scsi0", "scsi9")
		s.task(s.world.DestroyVM("", s.host, world.DestroyRequest{ID: vm.ID}))
	}, s.protect(vm.ID, "scsi0", "thief")
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
		{name: "resizes the prepared disk", on: ofPrepared, do: resizesForeign},
		{name: "moves the prepared disk to another storage", on: ofPrepared, do: movesForeign},
		{name: "reassigns the prepared disk", on: ofPrepared, do: func(s *foreignScene, vm world.VM, key string) (func(), error) {
			return nil, s.gives(vm.ID, key, "scsi1")
		}},
		{name: "boots the prepared disk first", on: ofPrepared, do: func(s *foreignScene, vm world.VM, key string) (func(), error) {
			return nil, s.change(vm.ID, map[string]string{"boot": "order=" + key})
		}},
	}
}

// ofPrepared finds the prepared disk on the parking VM.
func ofPrepared(s *foreignScene) (vm world.VM, key string, err error) {
	vm, err = s.look(s.parking())
	rec, _, errRecord := parking.ReadRecord(cluster.VM{Config: vm.Config})
	if err := errors.Join(err, errRecord); err != nil {
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
	for key, value := range vm.Config {
		if err == nil && value == volid {
			s.gives(id, key, "scsi1")
		}
	}
}

func deletesPrepared(s *foreignScene, vm world.VM, key string) (func(), error) {
	volid, _, _ := strings.Cut(vm.Config[key], ",")
	if err := errors.Join(s.change(vm.ID, map[string]string{"protection": "0"}), s.change(vm.ID, nil, key)); err != nil {
		return nil, err
	}
	return nil, s.frees(vm.ID, volid)
}

// TestTheVMIDIsTaken: another person makes a VM under a number right before recast does:
// their VM is left alone. The parking VM takes the next number; a node's VM needs its own.
func TestTheVMIDIsTaken(t *testing.T) {
	long(t)
	type story struct {
		act  string
		vmid int
		err  string
	}
	eachInBubble(t, map[string]story{
		"of the VM":         {"takes the VMID", matrixVM, `VM 9011 "thief" on pve1 has UUID `},
		"of the parking VM": {"takes the VMID of the parking VM", matrixParking, ""},
	}, func(t *testing.T, c story) {
		s := newForeignExchange(t, foreignWay{cluster.Recreate, false, false})
		var undo func()
		made := func(call record.Call) bool { return call.Params["vmid"] == strconv.Itoa(c.vmid) }
		came, err := s.disturbed(t.Context(), t, foreignMoment{is: made}, func() {
			var errAct error
			undo, errAct = s.play(foreignActNamed(c.act))
			must(t, errAct)
		})
		mustBe(t, came, "it could not be taken")
		if c.err == "" {
			must(t, err)
			requireSame(t, c.vmid+1, s.parking(), "the parking VM (-want +got)")
		} else {
			mustBe(t, err != nil, "it continued with their VM")
			requireForeignSaid(t, s, err)
			requireRefused(t, s.again(t.Context()), c.err)
			undo()
			must(t, s.again(t.Context()))
		}
		must(t, s.ended())
		s.requireNothingElse(t, nil, "in the end")
	})
}

// TestTwoNodesShareAHolder rolls two workers with data disks of one VM sequentially,
// although two may be down at a time, and leaves that VM unchanged.
func TestTwoNodesShareAHolder(t *testing.T) {
	o := sim.Options{ControlPlanes: 1, Workers: 2, Holder: true}
	eachLong(t, o, storiesOf(cluster.Recreate, cluster.Reimage), func(t *testing.T, lab *Lab, strategy cluster.Strategy) {
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
		require(t, !together.Load(), "they were rolled at the same time")
		lab.requireRolled(t)
		requireSame(t, before, fmt.Sprint(lab.vm(9201).Config), "the holder (-before +after)")
	})
}

var advised = regexp.MustCompile(`qm disk move \d+ \w+ --target-vmid OTHER --target-disk KEY|qm set \d+ --delete [a-z]+\d+`)

// TestAdviceKeepsAForeignDisk: a person attaches a disk to a VM during its exchange, and
// then types only what the hints say: their disk stays, and the exchange completes.
func TestAdviceKeepsAForeignDisk(t *testing.T) {
	long(t)
	created := foreignMoment{is: func(c record.Call) bool { return c.Params["vmid"] == strconv.Itoa(matrixVM) }, after: true}
	parked := foreignMoment{is: func(c record.Call) bool { return strings.HasSuffix(c.Path, "/move_disk") }, after: true}
	type story struct {
		at      foreignMoment
		detach  bool   // as the page says
		refused string // then
	}
	eachInBubble(t, map[string]story{
		"the new VM":           {at: created, refused: "has scsi5"},
		"the new VM, detached": {at: created, detach: true},
		"the old VM":           {at: parked, refused: "has scsi5"},
		"the old VM, detached": {at: parked, detach: true, refused: "has unused0"},
	}, func(t *testing.T, c story) {
		s := newForeignExchange(t, foreignWay{cluster.Recreate, false, false})
		came, err := s.disturbed(t.Context(), t, c.at, func() { must(t, errOf(s.play(foreignActNamed("adds a disk")))) })
		if came && err != nil && !strings.Contains(err.Error(), "has scsi5") {
			err = s.again(t.Context()) // their command crossed a change of ours
		}
		mustBe(t, came && err != nil && strings.Contains(err.Error(), "has scsi5"), "came %t, err = %v", came, err)
		must(t, s.defineStranger())
		if c.detach {
			s.typed(t, fmt.Sprintf("qm set %d --protection 0", s.vm))
			s.typed(t, fmt.Sprintf("qm set %d --delete scsi5", s.vm))
			err = s.again(t.Context())
		}
		if c.refused == "" {
			must(t, err)
		} else {
			requireError(t, err, c.refused)
			for _, command := range advised.FindAllString(strings.Join(fault.Hints(err), "\n"), -1) {
				s.typed(t, command)
			}
			must(t, s.again(t.Context()))
		}
		must(t, s.ended())
		s.requireNothingElse(t, nil, "in the end")
	})
}

// typed runs a command from a hint, with one of their VMs in place of OTHER.
func (s *foreignScene) typed(t *testing.T, command string) {
	t.Helper()
	shell := sim.Shell{World: s.world, Host: s.host}
	filled := strings.NewReplacer("OTHER", strconv.Itoa(foreignVM), "KEY", "scsi5").Replace(command)
	said, err := shell.Run(strings.Fields(filled))
	mustBe(t, err == nil, "%s: %v\n%s", filled, err, said)
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
				s := newForeignRoll(t, foreignWay{c.strategy, false, false})
				at := foreignMoment{is: func(call record.Call) bool { return strings.HasSuffix(call.Path, c.change) }}
				came, err := s.disturbed(t.Context(), t, at, func() { must(t, errOf(s.play(foreignActNamed(c.act)))) })
				mustBe(t, came && err == nil, "came %t: %v", came, err)
				want := fmt.Sprintf("waiting for VM %d: it is locked (backup)", c.vm)
				require(t, s.heard(want), "it did not say %q", want)
				requireInSync(t, s.lab)
				s.lab.requireKept(1)
			})
		})
	}
}
