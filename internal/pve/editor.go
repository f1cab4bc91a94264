package pve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// CreateVM implements cluster.Editor.
func (c *Client) CreateVM(ctx context.Context, host string, id cluster.VMID, config map[string]string) error {
	for _, key := range []string{"start", "force", "archive", "vmid", "digest"} {
		if _, has := config[key]; has {
			return fmt.Errorf("create VM %d: %q is not a configuration key", id, key)
		}
	}
	params := map[string]string{"vmid": strconv.Itoa(int(id))}
	maps.Copy(params, config)
	err := c.carryOut(ctx, mutation{
		method: http.MethodPost, path: "/nodes/" + url.PathEscape(host) + "/qemu", params: params,
		worker: worker{host, "qmcreate", strconv.Itoa(int(id))}, slot: true, repeatable: true, look: c.seeCreated(host, id, config),
	})
	if err == nil {
		c.seen.add(id, sighting{host: host, at: time.Now(), off: true})
	}
	return err
}

// SetConfig implements cluster.Editor. If it fails, it leaves nothing pending for the VM's next stop or start.
func (c *Client) SetConfig(ctx context.Context, vm cluster.VM, set map[string]string, del []string) error {
	if len(set) == 0 && len(del) == 0 {
		return nil
	}
	params := map[string]string{}
	maps.Copy(params, set)
	if len(del) > 0 {
		params["delete"] = strings.Join(del, ",")
	}
	if err := withDigest(params, vm); err != nil {
		return err
	}
	m := configChange(vm, params, touchesDisk(set, del))
	m.look = c.seeConfig(vm, set, del)
	if err := c.carryOut(ctx, m); err != nil {
		return c.refused(ctx, vm, slices.AppendSeq(slices.Clone(del), maps.Keys(set)), err)
	}
	return nil
}

// refused returns the error of a failed change of those keys, after reverting what the change left pending.
func (c *Client) refused(ctx context.Context, vm cluster.VM, touched []string, err error) error {
	if errors.Is(err, cluster.ErrLostAnswer) || errors.Is(err, cluster.ErrChanged) {
		return err
	}
	if isNoConfig(err) {
		return fault.WithHint(err, "VM %d was deleted or migrated by someone else since it was read: see where it is, then run the same command again", vm.ID)
	}
	// Deleting a device first removes it from the boot order. The pending change of the boot order outlives the
	// revert of the deletion (Qemu.pm, update_vm_api).
	touched = append(touched, "boot")
	if revertErr := c.revertPending(ctx, vm, touched); revertErr != nil {
		return errors.Join(err, revertErr)
	}
	return err
}

// configChange returns a change of a configuration. A slow change runs in a worker, because the node that forwards a
// long request gives up.
func configChange(vm cluster.VM, params map[string]string, slow bool) mutation {
	m := mutation{method: http.MethodPut, path: vmPath(vm, "config"), params: params, repeatable: true}
	if slow {
		m.method, m.worker, m.slot = http.MethodPost, vmWorker(vm, "qmconfig"), true
	}
	return m
}

// revertPending reverts what a refused change left pending. Proxmox keeps a delete that the running guest did not
// follow, or that failed on a stopped VM, and retries it when the VM stops or starts (QemuServer.pm,
// vmconfig_apply_pending). Changes that were pending before stay.
func (c *Client) revertPending(ctx context.Context, was cluster.VM, touched []string) error {
	now := was
	if err := c.readConfig(ctx, &now); isNoConfig(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("see what the refused change left pending: %w", err)
	}
	left := slices.DeleteFunc(now.Pending, func(key string) bool {
		return !slices.Contains(touched, key) || slices.Contains(was.Pending, key)
	})
	if len(left) == 0 {
		return nil
	}
	params := map[string]string{"revert": strings.Join(left, ",")}
	if err := withDigest(params, now); err != nil {
		return err
	}
	m := configChange(now, params, false)
	m.look = c.seeReverted(now, left)
	if err := c.carryOut(ctx, m); err != nil {
		return fmt.Errorf("revert what the refused change left pending (%s): %w", strings.Join(left, ", "), err)
	}
	return nil
}

// DeleteVM implements cluster.Editor. A task that ends with warnings is an error: a volume could not be freed.
func (c *Client) DeleteVM(ctx context.Context, vm cluster.VM) error {
	defer c.seen.deleted(vm.ID)
	return c.carryOut(ctx, mutation{
		method: http.MethodDelete, path: vmPath(vm, ""), worker: vmWorker(vm, "qmdestroy"), slot: true, clean: true, look: c.seeDeleted(vm),
	})
}

// MoveDisk implements cluster.Editor.
func (c *Client) MoveDisk(ctx context.Context, vm cluster.VM, key string, to cluster.VMID, toKey string) error {
	params := map[string]string{"disk": key, "target-vmid": strconv.Itoa(int(to)), "target-disk": toKey}
	if err := withDigest(params, vm); err != nil {
		return err
	}
	return c.carryOut(ctx, mutation{
		method: http.MethodPost, path: vmPath(vm, "move_disk"), params: params,
		worker: moveWorker(vm, key, to, toKey), slot: true, repeatable: true, look: c.seeMoved(vm, key, to, toKey),
	})
}

// GrowDisk implements cluster.Editor.
func (c *Client) GrowDisk(ctx context.Context, vm cluster.VM, key, size string) error {
	params := map[string]string{"disk": key, "size": size}
	if err := withDigest(params, vm); err != nil {
		return err
	}
	return c.carryOut(ctx, mutation{
		method: http.MethodPut, path: vmPath(vm, "resize"), params: params,
		worker: vmWorker(vm, "resize"), slot: true, repeatable: true, look: c.seeGrown(vm, key, size),
	})
}

// SetPool implements cluster.Editor. Proxmox refuses a second request, because the VM is in the pool already.
func (c *Client) SetPool(ctx context.Context, id cluster.VMID, pool string) error {
	return c.carryOut(ctx, mutation{
		method: http.MethodPut, path: "/pools", params: map[string]string{"poolid": pool, "vms": strconv.Itoa(int(id)), "allow-move": "1"},
		repeatable: true, look: c.seePool(id, pool),
	})
}

// withDigest makes a change conditional on the configuration that vm was read with.
func withDigest(params map[string]string, vm cluster.VM) error {
	if vm.Digest == "" {
		return fmt.Errorf("%s was read without a digest, so a change could overwrite someone else's", vm)
	}
	params["digest"] = vm.Digest
	return nil
}

// FreeDisk implements cluster.Editor. It refuses a volume that another VM owns:
// Proxmox would drop the key and leave the volume.
func (c *Client) FreeDisk(ctx context.Context, vm cluster.VM, key string) error {
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
	if err := c.carryOut(ctx, m); err != nil {
		return c.refused(ctx, vm, []string{key}, err)
	}
	return c.checkFreed(ctx, vm, disk)
}

// checkFreed checks that the disk is gone: a task may succeed while a running guest
// still holds the disk, or while its storage does not free it.
func (c *Client) checkFreed(ctx context.Context, vm cluster.VM, disk cluster.Disk) error {
	now := vm
	if err := c.readConfig(ctx, &now); err != nil {
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
	there, err := c.HasVolume(ctx, vm.Host, disk.Volid)
	if err != nil {
		return fmt.Errorf("see whether %s is freed: %w", disk.Volid, err)
	}
	if there {
		return fmt.Errorf("%s is not freed: no drive of %s holds it, but its storage still has it", disk.Volid, vm)
	}
	return nil
}
