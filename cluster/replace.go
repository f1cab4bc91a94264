package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster/reach"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Replace exchanges the system of a stopped VM. Recreate makes a new VM under
// the same VMID with a blank system disk and every other disk carried over;
// Reimage and Rollback keep the VM and exchange its system disk, for a blank one
// or for a kept one. Meanwhile each disk that left the VM has a name in the
// parking VM's configuration. It needs Proxmox and nothing else.
type Replace struct {
	Proxmox   Proxmox
	Strategy  Strategy // Recreate, Reimage or Rollback
	Run       string
	Build     string // build ID, for the mark on the new VM
	VM        VM     // as it was before anything was touched
	Parking   VMID   // the parking VM, with an open record of this run
	Disks     []ParkedDisk
	Restore   *KeptDisk                                 // Rollback: the disk that comes back
	ISO       func(ctx context.Context) (string, error) // finds the volid of the boot ISO
	SystemGiB int                                       // wanted size of the new system disk; 0 or less than before: as before
	Serial    string                                    // of the blank system disk

	// Firewall tells the VM's firewall, which a new VM gets (firewall.Config.Sum); "": it had none.
	Firewall string

	// Blank is a setting of the VM that is another one until finish; nil: none.
	Blank *reach.Setting

	HostArch string // see Ties.HostArch

	ha   *HAResource // that the VM was; nil: not managed
	old  KeptDisk    // what the old system disk is kept as, but for where
	made KeptDisk    // what is known of the system on the new one

	// asks looks, right before a system disk leaves the VM, whether anything is on
	// it that nobody has said may be lost; nil: nobody can tell.
	asks func(ctx context.Context) error

	// aloneAtStart says that whoever starts the VM sees first that nobody else has its disks.
	aloneAtStart bool

	// pods lists the handles of pods' volumes; nil: nobody can be asked.
	pods func(ctx context.Context) ([]string, error)

	frees []FreePlan // kept disks that are superseded once this one is parked

	late *lateRequests         // those that may still come
	say  func(id, text string) // what a step waits for; nil: nobody listens
}

// replacing gives the exchange when a step runs: in a roll it is known only once
// the VM was remembered. Before something is done the record says again that it is
// ours; what is to be looked at does not change with it.
type replacing struct {
	read  func(ctx context.Context) (*Replace, error)
	known func(ctx context.Context) (*Replace, error)
}

func (get replacing) takeDown(s Strategy) []step.Step {
	var steps []step.Step
	if s == Recreate {
		steps = append(steps, step.Step{ID: "unprotect", Title: "lift its protection", Risk: step.Disruptive, Skip: get.skip((*Replace).unprotected), Do: get.do((*Replace).unprotect)})
	}
	steps = append(steps, step.Step{
		ID: "park", Code: fault.ParkedHalf, Title: "park its disks on the parking VM", Risk: step.Disruptive, Skip: get.skip((*Replace).emptied), Steps: get.steps((*Replace).parkSteps),
	})
	if s == Recreate {
		steps = append(steps, step.Step{
			ID: "delete-vm", Code: fault.ParkedHalf, Title: "delete the VM, which owns no disk any more", Risk: step.Destructive,
			Skip: get.skip((*Replace).replaced), Do: get.do((*Replace).deleteVM),
		})
	}
	return steps
}

func (get replacing) bringUp(s Strategy) []step.Step {
	var first step.Step
	switch s {
	case Recreate:
		first = step.Step{ID: "create-vm", Code: fault.ParkedHalf, Title: "create the VM again with a blank system disk", Skip: get.skip((*Replace).created), Do: get.do((*Replace).createVM)}
	case Rollback:
		first = step.Step{ID: "restore-disk", Code: fault.ParkedHalf, Title: "put the kept system disk back", Skip: get.skip((*Replace).restored), Do: get.do((*Replace).restore)}
	default:
		first = step.Step{ID: "blank-disk", Code: fault.ParkedHalf, Title: "give the VM a blank system disk and the boot ISO", Skip: get.skip((*Replace).blanked), Do: get.do((*Replace).blank)}
	}
	first.Risk = step.Disruptive
	return []step.Step{
		first,
		{ID: "attach", Code: fault.ParkedHalf, Title: "give the persistent disks back", Risk: step.Disruptive, Steps: get.steps((*Replace).attachSteps)},
	}
}

func (get replacing) skip(f func(*Replace, context.Context) (string, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		r, err := get.known(ctx)
		if err != nil {
			return "", err
		}
		return f(r, ctx)
	}
}

func (get replacing) do(f func(*Replace, context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := get.read(ctx)
		if err != nil {
			return err
		}
		return f(r, ctx)
	}
}

func (get replacing) steps(f func(*Replace) []step.Step) func(context.Context) ([]step.Step, error) {
	return func(ctx context.Context) ([]step.Step, error) {
		r, err := get.read(ctx)
		if err != nil {
			return nil, err
		}
		return f(r), nil
	}
}

// current reads the VM's configuration afresh; found is false once it is deleted.
func (r *Replace) current(ctx context.Context) (vm VM, found bool, err error) {
	return r.found(r.Proxmox.VMConfig(ctx, r.VM.ID))
}

// powered is current, with whether the VM is on.
func (r *Replace) powered(ctx context.Context) (vm VM, found bool, err error) {
	return r.found(r.Proxmox.VM(ctx, r.VM.ID))
}

func (r *Replace) found(vm VM, err error) (VM, bool, error) {
	switch {
	case errors.Is(err, ErrNotFound):
		return VM{}, false, nil
	case err != nil:
		return VM{}, false, fmt.Errorf("look up VM %d: %w", r.VM.ID, err)
	}
	return vm, true, nil
}

// stranger is the error of a VM that has the number of ours and another UUID.
func (r *Replace) stranger(vm VM) error {
	if forming(vm) {
		return halfMade(vm)
	}
	return fault.UUIDMismatch.Refusedf("%s has UUID %s: it is not the VM that was planned (UUID %s)", vm, vm.UUID(), r.VM.UUID())
}

// replaced is the goal of take-down: the VM as it was is gone. A VM that stays
// carries the run's mark from then on.
func (r *Replace) replaced(ctx context.Context) (string, error) {
	vm, found, err := r.current(ctx)
	if err != nil {
		return "", err
	}
	return r.isReplaced(vm, found)
}

func (r *Replace) isReplaced(vm VM, found bool) (string, error) {
	switch {
	case !found && r.Strategy != Recreate:
		return "", fault.VMChanged.Refusedf("VM %d was deleted by somebody else; its system disk is on parking VM %d or still in its storage", r.VM.ID, r.Parking)
	case !found:
		return fmt.Sprintf("VM %d is deleted", r.VM.ID), nil
	case vm.UUID() != r.VM.UUID():
		return "", r.stranger(vm)
	case vm.MadeBy() == r.Run:
		return fmt.Sprintf("VM %d was renewed by this run", r.VM.ID), nil
	}
	return "", nil
}

// takenDown is the goal of take-down, whichever way the VM goes.
func (r *Replace) takenDown(ctx context.Context) (string, error) {
	if r.Strategy == Recreate {
		return r.replaced(ctx)
	}
	return r.emptied(ctx)
}

// emptied is the goal of parking: what has to leave the VM has left it. For a
// VM that is to be deleted that is everything but the cloud-init drive.
func (r *Replace) emptied(ctx context.Context) (string, error) {
	vm, found, err := r.current(ctx)
	if err != nil {
		return "", err
	}
	if reason, err := r.isReplaced(vm, found); err != nil || reason != "" {
		return reason, err
	}
	if missing, err := r.notParked(ctx, vm, found); err != nil || missing != "" {
		return "", err
	}
	if r.Strategy != Recreate {
		return "its system disk is parked", nil
	}
	owned, err := ownedDisks(vm)
	switch {
	case err != nil:
		return "", err
	case len(owned) > 0:
		return "", stillThere(vm, owned, fault.ParkedHalf.Refusedf("every disk of %s is parked, but it has %s, which was not there when it was remembered", vm, volumesOf(owned)))
	}
	return fmt.Sprintf("%s owns no disk", vm), nil
}

// notParked names the first disk that is not where it is to be kept meanwhile.
// That a VM has lost a drive is no proof that the parking VM has it.
func (r *Replace) notParked(ctx context.Context, vm VM, found bool) (key string, err error) {
	park, err := r.Proxmox.VMConfig(ctx, r.Parking)
	if err != nil {
		return "", fmt.Errorf("look up parking VM %d: %w", r.Parking, err)
	}
	for _, d := range r.Disks {
		if d.Holder != 0 {
			if isDetached(d, vm, found) == "" {
				return d.Key, nil
			}
			continue
		}
		if reason, err := isParked(park, d); err != nil || reason == "" {
			return d.Key, err
		}
	}
	return "", nil
}

// ownedDisks lists what Proxmox would free with the VM, the cloud-init drive aside.
func ownedDisks(vm VM) ([]Disk, error) {
	disks, err := vm.Disks()
	return slices.DeleteFunc(disks, func(d Disk) bool { return d.CloudInit() || d.CDROM && d.Owner != vm.ID }), err
}

// stillThere is the error of drives that keep a VM from being deleted, with where they can go.
func stillThere(vm VM, drives []Disk, err error) error {
	for _, d := range drives {
		err = fault.WithHint(err, "%s", takeOut(vm, d))
	}
	return fault.WithHint(err, "take that out of VM %d, then run the same command again; nothing was deleted", vm.ID)
}

func volumesOf(drives []Disk) string {
	var names []string
	for _, d := range drives {
		names = append(names, d.Key+" ("+d.Volid+")")
	}
	return strings.Join(names, ", ")
}

func (r *Replace) deleteVM(ctx context.Context) error {
	if err := r.awaitDelete(ctx); err != nil {
		return err
	}
	return r.sending(ctx, sentDelete, LateQueue, r.deleteSame)
}

// deleteSame deletes the VM if it is still the one that was planned, stopped and empty.
func (r *Replace) deleteSame(ctx context.Context) error {
	vm, found, err := r.powered(ctx)
	if err != nil || !found {
		return err
	}
	owned, errOwned := ownedDisks(vm)
	missing, errParked := r.notParked(ctx, vm, found)
	if err := errors.Join(errOwned, errParked); err != nil {
		return err
	}
	switch {
	case missing != "":
		return fault.ParkedHalf.Refusedf("%s is not on parking VM %d: %s is not deleted", missing, r.Parking, vm)
	case vm.UUID() != r.VM.UUID() || vm.Name != r.VM.Name || vm.Host != r.VM.Host:
		return fault.UUIDMismatch.Refusedf("%s (UUID %s) is not the VM that was planned: %s (UUID %s)", vm, vm.UUID(), r.VM, r.VM.UUID())
	case vm.Running:
		return startedMeanwhile(vm)
	case vm.Lock != "" && !locked(vm): // Proxmox refuses to delete it under any; see Patient
		return fault.VMLocked.Refusedf("%s is locked (%s)", vm, vm.Lock)
	case len(owned) > 0:
		return stillThere(vm, owned, fault.ParkedHalf.Refusedf("%s still owns %s, which would be deleted with it", vm, volumesOf(owned)))
	case vm.Config["vmstate"] != "" || vm.Config["parent"] != "" || len(vm.Pending) > 0:
		// What they name would be deleted too (qemu-server, QemuServer.pm, destroy_vm).
		return fault.VMChanged.Refusedf("%s has a saved state, a snapshot or pending changes (%s), which it had not: it is not deleted",
			vm, strings.TrimSpace(strings.Join(append(slices.Clone(vm.Pending), vm.Config["vmstate"], vm.Config["parent"]), " ")))
	}
	if err := errors.Join(requireRemakeable(vm, r.HostArch), requireRemakeable(r.VM, r.HostArch)); err != nil {
		return err
	}
	if changed := r.changedSince(vm); len(changed) > 0 {
		return fault.WithHint(fault.VMChanged.Refusedf("%s was changed by somebody else since it was remembered (%s): the new VM would not have that, so it is not deleted", vm, strings.Join(changed, "; ")),
			"set that back, then run the same command again; or recast recover NODE, which gives the old VM its disks back, and roll anew")
	}
	if err := r.requireFirewallKept(ctx, vm); err != nil {
		return err
	}
	if err := RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	if err := r.Proxmox.DeleteVM(ctx, vm); err != nil {
		return fmt.Errorf("delete %s: %w", vm, err)
	}
	return nil
}

// changedSince lists the settings of the old VM that are no longer as they were
// remembered, apart from what the exchange itself changes. Nothing that may be
// secret is in it.
func (r *Replace) changedSince(vm VM) []string {
	ours := append([]string{"boot", "onboot", "protection"}, renewed...)
	var changed []string
	for _, key := range slices.Sorted(maps.Keys(r.VM.Config)) {
		now, there := vm.Config[key]
		switch {
		case slices.Contains(ours, key), IsDiskKey(key), there && sameSetting(now, r.VM.Config[key]):
		case !there:
			changed = append(changed, key+" is gone")
		default:
			changed = append(changed, key+" is another one")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		if _, had := r.VM.Config[key]; !had && !slices.Contains(ours, key) && !IsDiskKey(key) {
			changed = append(changed, key+" is new")
		}
	}
	return changed
}

// sameSetting compares two values of a setting; Proxmox ends a description with a line break.
func sameSetting(a, b string) bool { return strings.TrimRight(a, "\n") == strings.TrimRight(b, "\n") }

// unprotected is so for a VM that may be deleted.
func (r *Replace) unprotected(ctx context.Context) (string, error) {
	vm, found, err := r.current(ctx)
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

func (r *Replace) unprotect(ctx context.Context) error {
	vm, found, err := r.current(ctx)
	if err != nil || !found {
		return err
	}
	return liftProtection(ctx, r.Proxmox, vm)
}

// liftProtection allows drives to leave a VM, and the VM to be deleted. Finish
// sets a node's own again; the next write of its record, a parking VM's.
func liftProtection(ctx context.Context, px Editor, vm VM) error {
	return fault.Prefix("lift the protection of "+vm.String(), px.SetConfig(ctx, vm, map[string]string{"protection": "0"}, nil))
}

// RequireQuorum is asked right before every call that can destroy: without
// quorum Proxmox deletes a VM's disks first and fails afterwards.
func RequireQuorum(ctx context.Context, px Inventory) error {
	quorate, err := px.Quorate(ctx)
	if err != nil {
		return fmt.Errorf("ask Proxmox for quorum: %w", err)
	}
	if !quorate {
		return fault.WithHint(fault.NoQuorum.Refusedf("the Proxmox cluster has no quorum"), "look at pvecm status on a Proxmox node, then run the same command again")
	}
	return nil
}
