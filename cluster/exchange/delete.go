package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// changedSince lists the settings of the old VM that have changed since they were remembered, apart
// from those that the exchange itself changes. It includes no values, which may be secret.
func (r *Replace) changedSince(vm cluster.VM) []string {
	ours := append([]string{"boot", "onboot", "protection"}, cluster.NeverCarried...)
	var changed []string
	for _, key := range slices.Sorted(maps.Keys(r.VM.Config)) {
		now, there := vm.Config[key]
		switch {
		case slices.Contains(ours, key), cluster.IsDiskKey(key), there && sameSetting(now, r.VM.Config[key]):
		case !there:
			changed = append(changed, key+" is gone")
		default:
			changed = append(changed, key+" is another one")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		if _, had := r.VM.Config[key]; !had && !slices.Contains(ours, key) && !cluster.IsDiskKey(key) {
			changed = append(changed, key+" is new")
		}
	}
	return changed
}

// deleteSame deletes the VM if it is still the planned one, stopped and empty.
func (r *Replace) deleteSame(ctx context.Context) error {
	var vm, park cluster.VM
	var found bool
	var errParking, errKept error
	err := wait.All(
		func() (err error) {
			vm, found, err = r.Powered(ctx)
			return err
		},
		func() error {
			park, errParking = r.record().vm(ctx)
			return nil
		},
		func() error {
			errKept = r.requireFirewallKept(ctx, r.VM)
			return nil
		},
	)
	if err != nil || !found {
		return err
	}
	owned, errOwned := ownedDisks(vm)
	missing, errParked := r.notParked(park, vm, found)
	if err := errors.Join(errOwned, cmp.Or(errParking, errParked)); err != nil {
		return err
	}
	switch {
	case missing != "":
		return fault.ParkedHalf.Refusedf("%s is not on parking VM %d: %s is not deleted", missing, r.Parking, vm)
	case vm.UUID() != r.VM.UUID() || vm.Name != r.VM.Name || vm.Host != r.VM.Host:
		return fault.UUIDMismatch.Refusedf("%s (UUID %s) is not the VM that was planned: %s (UUID %s)", vm, vm.UUID(), r.VM, r.VM.UUID())
	case vm.Running:
		return startedMeanwhile(vm)
	case vm.Lock != "" && !cluster.Locked(vm): // Proxmox refuses a delete under any lock; see claim.WithPatience
		return fault.VMLocked.Refusedf("%s is locked (%s)", vm, vm.Lock)
	case len(owned) > 0:
		return stillThere(vm, owned, fault.ParkedHalf.Refusedf("%s still owns %s, which would be deleted with it", vm, volumesOf(owned)))
	case vm.Config["vmstate"] != "" || vm.Config["parent"] != "" || len(vm.Pending) > 0:
		// Proxmox would delete what they name, too (qemu-server, QemuServer.pm, destroy_vm).
		return fault.VMChanged.Refusedf("%s has a saved state, a snapshot or pending changes (%s), which it had not: it is not deleted",
			vm, strings.TrimSpace(strings.Join(append(slices.Clone(vm.Pending), vm.Config["vmstate"], vm.Config["parent"]), " ")))
	}
	if err := errors.Join(cluster.RequireRemakeable(vm, r.HostArch), cluster.RequireRemakeable(r.VM, r.HostArch)); err != nil {
		return err
	}
	if changed := r.changedSince(vm); len(changed) > 0 {
		return fault.WithHint(fault.VMChanged.Refusedf("%s was changed by someone else since it was remembered (%s): the new VM would not have that, so it is not deleted", vm, strings.Join(changed, "; ")),
			"set that back, then run the same command again; or recast undo NODE, which gives the old VM its disks back, and roll again")
	}
	if errKept != nil { // errKept is about the VM on that host under that name, which it still is
		return errKept
	}
	if err := cluster.RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	return fault.Prefix(fmt.Sprintf("delete %s", vm), r.Proxmox.DeleteVM(ctx, vm))
}

func (r *Replace) deleteVM(ctx context.Context) error {
	if err := r.awaitDelete(ctx); err != nil {
		return err
	}
	return r.Sending(ctx, SentDelete, LateQueue, r.deleteSame)
}

// replaced is the goal of take-down: the old VM no longer exists. A VM that stays carries the run's mark from then on.
func (r *Replace) replaced(ctx context.Context) (string, error) {
	vm, found, err := r.Current(ctx)
	if err != nil {
		return "", err
	}
	return r.isReplaced(vm, found)
}

// TakenDown is the goal of take-down for every strategy. A VM that only gets another shape is off until it has the
// run's mark.
func (r *Replace) TakenDown(ctx context.Context) (string, error) {
	switch {
	case r.Strategy.DeletesVM():
		return r.replaced(ctx)
	case r.Strategy.Reshapes():
		vm, found, err := r.Powered(ctx)
		if err != nil || found && vm.MadeBy() != r.Run && !vm.Running && !vm.HA && vm.Config["onboot"] != "1" {
			return vm.String() + " is off", err
		}
		return r.replaced(ctx)
	}
	return r.emptied(ctx)
}

func (r *Replace) unprotect(ctx context.Context) error {
	vm, found, err := r.Current(ctx)
	if err != nil || !found {
		return err
	}
	return LiftProtection(ctx, r.Proxmox, vm)
}

// unprotected is the goal of unprotect: the VM may be deleted.
func (r *Replace) unprotected(ctx context.Context) (string, error) {
	vm, found, err := r.Current(ctx)
	if err != nil {
		return "", err
	}
	if reason, err := r.isReplaced(vm, found); err != nil || reason != "" {
		return reason, err
	}
	if found && vm.Config["protection"] == "1" {
		return "", nil
	}
	return "it is not protected", nil
}

// LiftProtection allows Proxmox to remove drives from a VM, and to delete it. Finish protects a
// node's VM again, and the next write of its record protects a parking VM again.
func LiftProtection(ctx context.Context, px cluster.Editor, vm cluster.VM) error {
	return fault.Prefix("lift the protection of "+vm.String(), px.SetConfig(ctx, vm, map[string]string{"protection": "0"}, nil))
}

// ownedDisks lists what Proxmox would free with the VM, except the cloud-init drive.
func ownedDisks(vm cluster.VM) ([]cluster.Disk, error) {
	disks, err := vm.Disks()
	return slices.DeleteFunc(disks, func(d cluster.Disk) bool { return d.CloudInit() || d.CDROM && d.Owner != vm.ID }), err
}

// sameSetting compares two values of a setting; Proxmox ends a description with a line break.
func sameSetting(a, b string) bool { return strings.TrimRight(a, "\n") == strings.TrimRight(b, "\n") }

// stillThere adds to err, for each drive that prevents the VM's deletion, where the drive can go.
func stillThere(vm cluster.VM, drives []cluster.Disk, err error) error {
	for _, d := range drives {
		err = fault.WithHint(err, "%s", takeOut(vm, d))
	}
	return fault.WithHint(err, "take that out of VM %d, then run the same command again; nothing was deleted", vm.ID)
}

func volumesOf(drives []cluster.Disk) string {
	names := cluster.Each(drives, func(d cluster.Disk) string { return d.Key + " (" + d.Volid + ")" })
	return strings.Join(names, ", ")
}

// awaitDelete waits until an earlier, unanswered delete of the VM is carried out or can't come any more. A second
// delete would free the VMID for another VM, which the first delete would then destroy.
func (r *Replace) awaitDelete(ctx context.Context) error {
	return r.record().awaitUnless(ctx, r.saying("delete-vm"), func(ctx context.Context) (bool, error) {
		_, found, err := r.Current(ctx)
		return !found, err
	}, SentDelete)
}
