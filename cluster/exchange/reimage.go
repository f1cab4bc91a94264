package exchange

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// systemGiven is the goal of GiveSystem.
func (r *Replace) systemGiven(ctx context.Context) (string, error) {
	read := r.Current
	if r.Prepared != "" {
		read = r.Powered
	}
	vm, disk, there, err := r.systemNow(read(ctx))
	if err != nil || !there || disk.Option("serial") != r.Serial || vm.MadeBy() != r.Run {
		return "", err
	}
	if !vm.Running && !r.isComplete(vm, disk) { // Current counts a VM as running
		return "", nil // it was handed over, and no more
	}
	return fmt.Sprintf("%s of %s is blank or was installed by this run", disk.Key, vm), nil
}

// GiveSystem gives the VM, which is off, its new system disk: the prepared one, or a blank one with the
// boot ISO.
func (r *Replace) GiveSystem(ctx context.Context) error {
	if r.Prepared != "" {
		return r.givePrepared(ctx)
	}
	return r.giveBlank(ctx)
}

// giveBlank inserts the boot ISO first. Then it allocates the disk and sets the run's mark in one
// request, so a second run redoes whatever a crash interrupted.
func (r *Replace) giveBlank(ctx context.Context) error {
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
	cd := cluster.CDKey(r.VM.Config, disks)
	media := map[string]string{cd: iso + ",media=cdrom", "onboot": "0"}
	r.ejectMedia(media)
	if err := r.setUp(ctx, media); err != nil {
		return err
	}
	_, now, there, err := r.systemNow(r.Current(ctx))
	if err != nil {
		return err
	}
	description, err := r.marked()
	if err != nil {
		return err
	}
	// A boot order may only name devices that exist or that the same request adds
	// (qemu-server, API2/Qemu.pm, update_vm_api).
	set := map[string]string{"description": description, "boot": bootOrder(r.VM.Config["boot"], system.Key, cd)}
	if r.Strategy.VM() == cluster.VMAgain { // dropDangling may have lifted it
		set["protection"] = "1"
	}
	if r.Blank != nil {
		set[r.Blank.Key] = r.Blank.Value
	}
	switch {
	case !there:
		set[system.Key] = r.blankDisk(system)
	case now.Option("serial") != r.Serial:
		return fault.ParkedHalf.Refusedf("%s of VM %d is %s: someone else put it there after the system disk was parked", system.Key, r.VM.ID, now.Volid)
	}
	if err := cluster.RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	return r.setUp(ctx, set)
}

// systemRestored is the goal of a rollback's exchange: the kept disk is the system disk again.
func (r *Replace) systemRestored(ctx context.Context) (string, error) {
	if r.Restore == nil {
		return "", r.nothingKept()
	}
	vm, disk, there, err := r.systemNow(r.Powered(ctx))
	if err != nil || !there || vm.MadeBy() != r.Run || !cluster.SameOptions(disk.Options, cluster.SplitOptions(r.Restore.Options)) || !vm.BootsFirst(disk.Key) && !vm.Running {
		return "", err
	}
	return fmt.Sprintf("%s of %s is %s again", disk.Key, vm, disk.Volid), nil
}

// nothingKept is the error of a rollback whose record names no kept disk.
func (r *Replace) nothingKept() error {
	return fault.WithHint(fault.NoWayBack.Refusedf("the record of VM %d names no kept system disk that could come back", r.VM.ID), "%s", cluster.PreviousLock)
}

// restoreSystem gives a kept system disk to a VM that stays.
func (r *Replace) restoreSystem(ctx context.Context) error {
	if r.Restore == nil {
		return r.nothingKept()
	}
	description, err := r.marked()
	if err != nil {
		return err
	}
	if err := r.setUp(ctx, map[string]string{"description": description, "onboot": "0"}); err != nil {
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
	back := parking.ParkedDisk{Key: system.Key, ParkKey: r.Restore.Key, Options: r.Restore.Options, System: true}
	if err := r.attach(ctx, back); err != nil {
		return err
	}
	return r.setUp(ctx, map[string]string{"boot": bootOrder(r.VM.Config["boot"], system.Key, "")})
}

// hasSystem is the goal of a step that only sees that there is a system disk; a prepared one was handed over whole.
func (r *Replace) hasSystem(ctx context.Context) (string, error) {
	read := r.Current
	if r.Prepared != "" {
		read = r.Powered
	}
	vm, disk, there, err := r.systemNow(read(ctx))
	if err != nil || !there || r.Prepared != "" && !vm.Running && !r.isComplete(vm, disk) {
		return "", err
	}
	return fmt.Sprintf("%s of %s is %s", disk.Key, vm, disk.Volid), nil
}

// systemNow returns the disk in the system disk's place on the VM as read; there is false while
// that place is empty.
func (r *Replace) systemNow(now cluster.VM, found bool, errRead error) (vm cluster.VM, disk cluster.Disk, there bool, err error) {
	vm, err = now, errRead
	if err != nil || !found {
		return vm, cluster.Disk{}, false, err
	}
	for _, d := range r.Disks {
		value, taken := vm.Config[d.Key]
		if !d.System || !taken {
			continue
		}
		disk, err = cluster.ParseDisk(d.Key, value)
		if err == nil && disk.Owner != vm.ID {
			err = fault.ParkedHalf.Refusedf("%s of %s is %s, which is not its own: someone else changed it", d.Key, vm, disk.Volid)
		}
		return vm, disk, true, err
	}
	return vm, cluster.Disk{}, false, nil
}

func (r *Replace) setUp(ctx context.Context, set map[string]string) error {
	vm, err := r.off(ctx)
	if err != nil {
		return err
	}
	if err := r.Proxmox.SetConfig(ctx, vm, set, nil); err != nil {
		return fmt.Errorf("set up %s: %w", vm, err)
	}
	return nil
}

// off returns the VM, which must be off.
func (r *Replace) off(ctx context.Context) (cluster.VM, error) {
	vm, found, err := r.Powered(ctx)
	switch {
	case err != nil:
		return vm, err
	case !found:
		return vm, fault.ParkedHalf.Refusedf("VM %d is gone", r.VM.ID)
	case vm.UUID() != r.VM.UUID():
		return vm, r.uuidMismatch(vm)
	case vm.Running:
		return vm, startedMeanwhile(vm)
	}
	return vm, nil
}
