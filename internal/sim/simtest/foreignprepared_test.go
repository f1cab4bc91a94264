package simtest

import (
	"errors"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/world"
)

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
