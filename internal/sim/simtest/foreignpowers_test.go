package simtest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

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

// migratesForeign migrates a VM with its disks to the other host. Holders' disks can't
// move.
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

// foreignBackup is the duration of a backup.
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
		if s.defineStranger() == nil {
			s.task(s.world.MoveDisk("", s.host, world.MoveRequest{ID: vm.ID, Disk: "scsi0", Target: foreignVM, TargetDisk: "scsi9"}))
			s.task(s.world.DestroyVM("", s.host, world.DestroyRequest{ID: vm.ID}))
		}
	}, s.protect(vm.ID, "scsi0", "thief")
}
