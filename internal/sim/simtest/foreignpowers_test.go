package simtest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

func startsForeign(s *foreignScene, vm world.VM) (func() error, error) {
	undo := func() error {
		if now, err := s.look(vm.ID); err != nil || !now.Running || vm.Running {
			return nil
		}
		return s.task(s.world.Stop("", s.host, vm.ID))
	}
	return undo, s.task(s.world.Start("", s.host, vm.ID))
}

// migratesForeign migrates a VM with its disks to the other host. Holders' disks can't
// move.
func migratesForeign(s *foreignScene, vm world.VM) (func() error, error) {
	to := map[string]string{s.host: s.other, s.other: s.host}[vm.Host]
	move := func(from, to string) error {
		return s.task(s.world.Migrate("", from, world.MigrateRequest{ID: vm.ID, Target: to, Online: vm.Running, WithLocalDisks: vm.Running}))
	}
	undo := func() error {
		if now, err := s.look(vm.ID); err != nil || now.Host != to {
			return nil
		}
		return move(to, vm.Host)
	}
	return undo, move(vm.Host, to)
}

func snapshotsForeign(s *foreignScene, vm world.VM) (func() error, error) {
	undo := func() error {
		if now, err := s.look(vm.ID); err != nil || len(now.Snapshots) == 0 {
			return nil
		}
		return s.world.DeleteSnapshot(vm.ID, "theirs")
	}
	return undo, s.world.AddSnapshot(vm.ID, world.Snapshot{Name: "theirs"})
}

// foreignBackup is the duration of a backup.
const foreignBackup = 3 * time.Minute

func backsUpForeign(s *foreignScene, vm world.VM) (func() error, error) {
	upid := s.world.StartBackup("", s.host, foreignBackup, vm.ID)
	undo := func() error { s.world.WaitTask(upid); return nil }
	for range 100 { // until it has its lock
		time.Sleep(100 * time.Millisecond)
		if now, err := s.look(vm.ID); err == nil && now.Config["lock"] == "backup" {
			return undo, nil
		}
	}
	return undo, fmt.Errorf("%s did not begin", upid)
}

func locksForeign(s *foreignScene, vm world.VM) (func() error, error) {
	if vm.Config["lock"] != "" {
		return nil, errors.New("it is locked already")
	}
	s.world.SetLock(vm.ID, "suspended")
	return func() error { s.world.SetLock(vm.ID, ""); return nil }, nil
}

func deletesForeign(id func(*foreignScene) int, unreferenced bool) func(*foreignScene) (func() error, error) {
	return onForeign(id, func(s *foreignScene, vm world.VM) (func() error, error) {
		if vm.Running {
			return nil, errors.New("Proxmox does not delete a VM that runs")
		}
		if vm.Config["protection"] == "1" {
			if err := s.change(vm.ID, map[string]string{"protection": "0"}); err != nil {
				return nil, err
			}
		}
		return nil, s.task(s.world.DestroyVM("", s.host, world.DestroyRequest{ID: vm.ID, Unreferenced: unreferenced}))
	})
}

// takesForeign creates another VM under a number that is free at that moment.
func takesForeign(id func(*foreignScene) int) func(*foreignScene) (func() error, error) {
	return func(s *foreignScene) (func() error, error) {
		vmid := id(s)
		err := s.task(s.world.CreateVM("", s.host, world.CreateRequest{ID: vmid, Config: map[string]string{"name": "thief", "memory": "512", "scsi0": s.storage + ":1,serial=thief"}}))
		if err != nil {
			return nil, err
		}
		vm, err := s.look(vmid)
		if err != nil {
			return nil, err
		}
		volid, _, _ := strings.Cut(vm.Config["scsi0"], ",")
		media := s.world.Media(volid, s.host)
		s.world.Protect(world.Protected{Serial: "thief", Media: media})
		return func() error {
			if err := s.defineStranger(); err != nil {
				return err
			}
			if err := s.task(s.world.MoveDisk("", s.host, world.MoveRequest{ID: vmid, Disk: "scsi0", Target: foreignVM, TargetDisk: "scsi9"})); err != nil {
				return err
			}
			return s.task(s.world.DestroyVM("", s.host, world.DestroyRequest{ID: vmid}))
		}, nil
	}
}
