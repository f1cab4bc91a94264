package simtest

import (
	"cmp"
	"errors"
	"strings"

	"github.com/recast-sh/recast/internal/sim/world"
)

// foreignAct is another person's act, as root@pam.
type foreignAct struct {
	name string
	// do fails if the act does not apply, or Proxmox refuses it. undo reverts it as far as
	// possible; nil: not needed.
	do func(s *foreignScene) (undo func() error, err error)
	// destroys says that the worker can lose something for good, if only the name of its disk.
	destroys bool
}

// onForeign is an act on a VM, if there is one.
func onForeign(id func(*foreignScene) int, act func(s *foreignScene, vm world.VM) (func() error, error)) func(*foreignScene) (func() error, error) {
	return func(s *foreignScene) (func() error, error) {
		vm, err := s.look(id(s))
		if err != nil {
			return nil, err
		}
		return act(s, vm)
	}
}

// onForeignData is an act on the VM, or the parking VM, that has the data disk at key.
func onForeignData(act func(s *foreignScene, vm world.VM, key string) (func() error, error)) func(*foreignScene) (func() error, error) {
	return func(s *foreignScene) (func() error, error) {
		vm, key, err := s.dataKey()
		if err != nil {
			return nil, err
		}
		return act(s, vm, key)
	}
}

// editsForeign changes one key of a VM and reverts it later.
func editsForeign(id func(*foreignScene) int, key string, value func(old string) string) func(*foreignScene) (func() error, error) {
	return onForeign(id, func(s *foreignScene, vm world.VM) (func() error, error) {
		old, had := vm.Config[key]
		undo := func() error {
			if _, err := s.look(vm.ID); err != nil {
				return nil // it is gone, with the change
			}
			if !had {
				return s.change(vm.ID, nil, key)
			}
			return s.change(vm.ID, map[string]string{key: old})
		}
		return undo, s.change(vm.ID, map[string]string{key: value(old)})
	})
}

func ofVM(s *foreignScene) int      { return s.vm }
func ofParking(s *foreignScene) int { return s.parking() }
func ofHolder(s *foreignScene) int  { return s.holder }

func to(value string) func(string) string { return func(string) string { return value } }

func foreignEdits() []foreignAct {
	return []foreignAct{
		{name: "edits the description", do: editsForeign(ofVM, "description", func(old string) string { return old + "\nEdited." })},
		{name: "edits the memory", do: editsForeign(ofVM, "memory", to("8192"))},
		{name: "adds a disk", do: addsForeignDisk},
		{name: "detaches the data disk", do: onForeignData(detachesForeign)},
		{name: "unprotects the parking VM", do: func(s *foreignScene) (func() error, error) {
			return nil, s.change(s.parking(), map[string]string{"protection": "0"})
		}},
		{name: "spoils the record", do: editsForeign(ofParking, "description", func(old string) string { return strings.Replace(old, `{"cluster"`, `{"cluster`, 1) })},
		{name: "removes the record", do: editsForeign(ofParking, "description", to("Nothing to see."))},
		{name: "resizes the data disk", do: onForeignData(func(s *foreignScene, vm world.VM, key string) (func() error, error) {
			return nil, s.task(s.world.Resize("", s.host, world.ResizeRequest{ID: vm.ID, Disk: key, Size: "+1G"}))
		})},
		{name: "moves the data disk to another storage", do: onForeignData(movesForeign)},
		{name: "reassigns the data disk", do: onForeignData(reassignsForeign), destroys: true}, // its name: it may come back under another one
		{name: "attaches a volume of a pod", do: attachesForeignPod},
		{name: "names the data disk twice", do: namesForeignTwice(0)},
		{name: "names the data disk in another VM", do: namesForeignTwice(foreignVM)},
	}
}

func foreignPowers() []foreignAct {
	return []foreignAct{
		{name: "starts the VM", do: onForeign(ofVM, startsForeign)},
		{name: "starts the parking VM", do: onForeign(ofParking, startsForeign)},
		{name: "starts the holder", do: onForeign(ofHolder, startsForeign)},
		{name: "stops the VM", do: func(s *foreignScene) (func() error, error) {
			if vm, err := s.look(s.vm); err != nil || !vm.Running {
				return nil, errors.New("it does not run")
			}
			undo := func() error {
				vm, err := s.look(s.vm)
				park, errPark := s.look(s.parking())
				if err != nil || errPark != nil || vm.Running || strings.Contains(park.Config["description"], `"open":true`) {
					return nil
				}
				return s.task(s.world.Start("", s.host, s.vm))
			}
			return undo, s.task(s.world.Stop("", s.host, s.vm))
		}},
		{name: "migrates the VM", do: onForeign(ofVM, migratesForeign)},
		{name: "migrates the parking VM", do: onForeign(ofParking, migratesForeign)},
		{name: "snapshots the VM", do: onForeign(ofVM, snapshotsForeign)},
		{name: "snapshots the parking VM", do: onForeign(ofParking, snapshotsForeign)},
		{name: "backs the VM up", do: onForeign(ofVM, backsUpForeign)},
		{name: "backs the parking VM up", do: onForeign(ofParking, backsUpForeign)},
		{name: "leaves a lock on the VM", do: onForeign(ofVM, locksForeign)},
		{name: "leaves a lock on the parking VM", do: onForeign(ofParking, locksForeign)},
	}
}

func foreignDeletions() []foreignAct {
	return []foreignAct{
		{name: "deletes the VM", do: deletesForeign(ofVM, false), destroys: true},
		{name: "deletes the VM and what is unreferenced", do: deletesForeign(ofVM, true), destroys: true},
		{name: "deletes the parking VM", do: deletesForeign(ofParking, false), destroys: true},
		{name: "deletes the parking VM and what is unreferenced", do: deletesForeign(ofParking, true), destroys: true},
		{name: "deletes the holder", do: deletesForeign(ofHolder, false), destroys: true},
		{name: "takes the VMID", do: takesForeign(ofVM)},
		{name: "takes the VMID of the parking VM", do: takesForeign(func(s *foreignScene) int {
			if s.parking() != 0 {
				return s.parking() // refused
			}
			return s.park
		})},
	}
}

func foreignActs() []foreignAct {
	return append(append(foreignEdits(), foreignPowers()...), foreignDeletions()...)
}

// foreignVM is a VM outside of the cluster.
const foreignVM = 9500

func (s *foreignScene) defineStranger() error {
	if _, err := s.look(foreignVM); err == nil {
		return nil
	}
	return s.world.DefineVM(s.host, foreignVM, map[string]string{"name": "stranger", "memory": "512"}, nil)
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
func addsForeignDisk(s *foreignScene) (func() error, error) {
	if err := s.change(s.vm, map[string]string{"scsi5": s.storage + ":1,serial=theirs"}); err != nil {
		return nil, err
	}
	volid := func() (int, string) {
		for _, d := range s.world.Persistent() {
			if d.Serial == "theirs" {
				return d.VMID, d.Key
			}
		}
		return 0, ""
	}
	vm, err := s.look(s.vm)
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(vm.Config["scsi5"], ",")
	s.world.Protect(world.Protected{Serial: "theirs", Media: s.world.Media(name, s.host)})
	// Its owner moves it into another VM.
	return func() error {
		id, key := volid()
		if id != s.vm {
			return nil
		}
		if err := s.defineStranger(); err != nil {
			return err
		}
		if !strings.HasPrefix(key, "unused") {
			if err := s.detach(s.vm, key); err != nil {
				return err
			}
			_, key = volid()
		}
		return s.task(s.world.MoveDisk("", s.host, world.MoveRequest{ID: s.vm, Disk: key, Target: foreignVM, TargetDisk: "scsi5"}))
	}, nil
}

func detachesForeign(s *foreignScene, vm world.VM, key string) (func() error, error) {
	value := vm.Config[key]
	return func() error {
		now, err := s.look(vm.ID)
		volid, _, _ := strings.Cut(value, ",")
		if err != nil || now.Config[key] != "" || s.data().Volid != volid {
			return nil
		}
		return s.change(vm.ID, map[string]string{key: value})
	}, s.detach(vm.ID, key)
}

// movesForeign is move_disk to another storage, with delete=1.
func movesForeign(s *foreignScene, vm world.VM, key string) (func() error, error) {
	if vm.Config["lock"] != "" || s.way.holder {
		return nil, errors.New("Proxmox does not let them")
	}
	s.world.AddStorage(world.Storage{ID: "slow", Type: "dir", Content: []string{"images"}})
	old, options, _ := strings.Cut(vm.Config[key], ",")
	volid, err := s.world.Alloc("slow", s.host, vm.ID, 20<<30, s.world.Media(old, s.host))
	if err != nil {
		return nil, err
	}
	protection := vm.Config["protection"]
	if err := s.change(vm.ID, map[string]string{"protection": "0"}); err != nil {
		return nil, err
	}
	if err := s.change(vm.ID, map[string]string{key: volid + "," + options}); err != nil {
		return nil, err
	}
	if vm, err = s.look(vm.ID); err != nil {
		return nil, err
	}
	for _, unused := range []string{"unused0", "unused1"} {
		if vm.Config[unused] == old {
			if err := s.change(vm.ID, nil, unused); err != nil {
				return nil, err
			}
		}
	}
	return nil, s.change(vm.ID, map[string]string{"protection": cmp.Or(protection, "0")})
}

func reassignsForeign(s *foreignScene, vm world.VM, key string) (func() error, error) {
	if s.way.holder {
		return nil, errors.New("that would rename it under its holder")
	}
	if err := s.defineStranger(); err != nil {
		return nil, err
	}
	move := func(from, to int, fromKey, toKey string) error {
		return s.task(s.world.MoveDisk("", s.host, world.MoveRequest{ID: from, Disk: fromKey, Target: to, TargetDisk: toKey}))
	}
	if err := move(vm.ID, foreignVM, key, "scsi1"); err != nil {
		return nil, err
	}
	return func() error {
		if at := s.data(); at.VMID != foreignVM {
			return nil
		}
		for _, id := range []int{vm.ID, s.parking(), s.vm} {
			if _, err := s.look(id); err == nil {
				return move(foreignVM, id, "scsi1", key)
			}
		}
		return errNoVM
	}, nil
}

// attachesForeignPod is what proxmox-csi does for a pod.
func attachesForeignPod(s *foreignScene) (func() error, error) {
	volid, err := s.world.AllocDisk("", s.host, world.AllocRequest{Storage: s.storage, VMID: 9999, Name: "vm-9999-pvc-1a2b.raw", Bytes: 1 << 30, Format: "raw"})
	if err != nil {
		return nil, err
	}
	s.world.Protect(world.Protected{Serial: "pvc-1a2b", Media: s.world.Media(volid, s.host)})
	undo := func() error {
		if vm, err := s.look(s.vm); err != nil || vm.Config["scsi7"] == "" {
			return nil
		}
		return s.detach(s.vm, "scsi7")
	}
	return undo, s.change(s.vm, map[string]string{"scsi7": volid + ",serial=pvc-1a2b"})
}

// namesForeignTwice names the data disk under a second key of its VM (0), or of another VM.
func namesForeignTwice(other int) func(s *foreignScene) (func() error, error) {
	return onForeignData(func(s *foreignScene, vm world.VM, _ string) (func() error, error) {
		vmid := vm.ID
		if other != 0 {
			if err := s.defineStranger(); err != nil {
				return nil, err
			}
			vmid = other
		}
		undo := func() error {
			vm, err := s.look(vmid)
			if err != nil || vm.Config["scsi6"] == "" {
				return nil
			}
			return s.detach(vmid, "scsi6")
		}
		return undo, s.change(vmid, map[string]string{"scsi6": s.data().Volid + ",serial=again"})
	})
}
