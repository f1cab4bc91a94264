package cluster

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
)

// blanked is the goal of giving a VM that stays a blank system disk.
func (r *Replace) blanked(ctx context.Context) (string, error) {
	vm, disk, there, err := r.systemNow(r.current(ctx))
	if err != nil || !there || disk.Option("serial") != r.Serial || vm.MadeBy() != r.Run {
		return "", err
	}
	return fmt.Sprintf("%s of %s is blank or was installed by this run", disk.Key, vm), nil
}

// blank puts the boot ISO in first and allocates the disk after it, together
// with the run's mark: whatever of this a crash cuts off is done again.
func (r *Replace) blank(ctx context.Context) error {
	iso, err := r.ISO(ctx)
	if err != nil {
		return err
	}
	disks, err := r.VM.Disks()
	if err != nil {
		return err
	}
	system, err := r.systemDisk(disks)
	if err != nil {
		return err
	}
	cd := cdKey(r.VM.Config, disks)
	media := map[string]string{cd: iso + ",media=cdrom", "onboot": "0"}
	if err := r.takeOut(media); err != nil {
		return err
	}
	if err := r.set(ctx, media); err != nil {
		return err
	}
	_, now, there, err := r.systemNow(r.current(ctx))
	if err != nil {
		return err
	}
	description, err := r.marked()
	if err != nil {
		return err
	}
	// A boot order may only name what is there, or comes with the same request
	// (qemu-server, API2/Qemu.pm, update_vm_api).
	set := map[string]string{"description": description, "boot": bootOrder(r.VM.Config["boot"], system.Key, cd)}
	if r.Strategy == Recreate { // dropDangling may have lifted it
		set["protection"] = "1"
	}
	if r.Blank != nil {
		set[r.Blank.Key] = r.Blank.Value
	}
	switch {
	case !there:
		set[system.Key] = r.blankDisk(system)
	case now.Option("serial") != r.Serial:
		return fault.ParkedHalf.Refusedf("%s of VM %d is %s: somebody else put it there after the system disk was parked", system.Key, r.VM.ID, now.Volid)
	}
	if err := RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	return r.set(ctx, set)
}

// restored is the goal of a rollback's exchange: the kept disk is the system disk again.
func (r *Replace) restored(ctx context.Context) (string, error) {
	if r.Restore == nil {
		return "", r.nothingKept()
	}
	vm, disk, there, err := r.systemNow(r.powered(ctx))
	if err != nil || !there || vm.MadeBy() != r.Run || !sameOptions(disk.Options, splitOptions(r.Restore.Options)) || !vm.bootsFirst(disk.Key) && !vm.Running {
		return "", err
	}
	return fmt.Sprintf("%s of %s is %s again", disk.Key, vm, disk.Volid), nil
}

func (r *Replace) nothingKept() error {
	return fault.WithHint(fault.NoWayBack.Refusedf("the record of VM %d names no kept system disk that could come back", r.VM.ID), "%s", previousLock)
}

// restore gives a VM that stays a kept system disk.
func (r *Replace) restore(ctx context.Context) error {
	if r.Restore == nil {
		return r.nothingKept()
	}
	description, err := r.marked()
	if err != nil {
		return err
	}
	if err := r.set(ctx, map[string]string{"description": description, "onboot": "0"}); err != nil {
		return err
	}
	disks, err := r.VM.Disks()
	if err != nil {
		return err
	}
	system, err := r.systemDisk(disks)
	if err != nil {
		return err
	}
	back := ParkedDisk{Key: system.Key, ParkKey: r.Restore.Key, Options: r.Restore.Options, System: true}
	if err := r.attach(ctx, back); err != nil {
		return err
	}
	return r.set(ctx, map[string]string{"boot": bootOrder(r.VM.Config["boot"], system.Key, "")})
}

// systemNow is what the VM, as it was read, has at the system disk's place; there
// is false while that is empty.
func (r *Replace) systemNow(now VM, found bool, errRead error) (vm VM, disk Disk, there bool, err error) {
	vm, err = now, errRead
	if err != nil || !found {
		return vm, Disk{}, false, err
	}
	for _, d := range r.Disks {
		value, taken := vm.Config[d.Key]
		if !d.System || !taken {
			continue
		}
		disk, err = ParseDisk(d.Key, value)
		if err == nil && disk.Owner != vm.ID {
			err = fault.ParkedHalf.Refusedf("%s of %s is %s, which is not its own: somebody else changed it", d.Key, vm, disk.Volid)
		}
		return vm, disk, true, err
	}
	return vm, Disk{}, false, nil
}

func (r *Replace) set(ctx context.Context, set map[string]string) error {
	vm, found, err := r.powered(ctx)
	switch {
	case err != nil:
		return err
	case !found:
		return fault.ParkedHalf.Refusedf("VM %d is gone", r.VM.ID)
	case vm.UUID() != r.VM.UUID():
		return r.stranger(vm)
	case vm.Running:
		return startedMeanwhile(vm)
	}
	if err := r.Proxmox.SetConfig(ctx, vm, set, nil); err != nil {
		return fmt.Errorf("set up %s: %w", vm, err)
	}
	return nil
}
