package pve

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// FreeDisk implements cluster.Editor. It refuses a volume that another VM owns:
// Proxmox would drop the key and leave the volume.
func (c *editor) FreeDisk(ctx context.Context, vm cluster.VM, key string) error {
	disk, err := cluster.ParseDisk(key, vm.Config[key])
	if err != nil {
		return fmt.Errorf("free a disk of %s: %w", vm, err)
	}
	if disk.Owner != vm.ID {
		return fault.PruneRefused.Refusedf("%s of %s: %s is not a volume of this VM, so it is not freed", key, vm, disk.Volid)
	}
	params := map[string]string{"delete": key, "force": "1"}
	if err := withDigest(params, vm); err != nil {
		return err
	}
	m := configChange(vm, params, true)
	m.look = c.seeFreed(vm, disk)
	if err := c.changes.carryOut(ctx, m); err != nil {
		return c.refused(ctx, vm, []string{key}, err)
	}
	return c.checkFreed(ctx, vm, disk)
}

// checkFreed checks that the disk is gone: a task may succeed while a running guest
// still holds the disk, or while its storage does not free it.
func (c *editor) checkFreed(ctx context.Context, vm cluster.VM, disk cluster.Disk) error {
	now := vm
	if err := c.vms.readConfig(ctx, &now); err != nil {
		return fmt.Errorf("see whether %s is freed: %w", disk.Volid, err)
	}
	if slices.Contains(now.Pending, disk.Key) {
		return fmt.Errorf("%s is not freed: the removal of %s from %s is pending", disk.Volid, disk.Key, vm)
	}
	for _, key := range slices.Sorted(maps.Keys(now.Config)) {
		if d, err := cluster.ParseDisk(key, now.Config[key]); err == nil && d.Volid == disk.Volid {
			return fmt.Errorf("%s is not freed: it is %s of %s", disk.Volid, key, vm)
		}
	}
	if _, still := now.Config[disk.Key]; still {
		return fmt.Errorf("%s is freed, but %s of %s is there again", disk.Volid, disk.Key, vm)
	}
	there, err := c.storages.HasVolume(ctx, vm.Host, disk.Volid)
	if err != nil {
		return fmt.Errorf("see whether %s is freed: %w", disk.Volid, err)
	}
	if there {
		return fmt.Errorf("%s is not freed: no drive of %s holds it, but its storage still has it", disk.Volid, vm)
	}
	return nil
}
