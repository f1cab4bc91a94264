package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

func (r *Replace) parkSteps() []step.Step {
	var steps []step.Step
	for _, d := range r.Disks {
		steps = append(steps, step.Step{
			ID: d.Key, Title: fmt.Sprintf("park %s as %s of VM %d", d.Key, d.ParkKey, r.Parking), Risk: step.Disruptive,
			Skip: func(ctx context.Context) (string, error) { return r.parked(ctx, d) },
			Do:   func(ctx context.Context) error { return r.park(ctx, d) },
		})
	}
	return steps
}

// onParking reads the drive under its parking key; found is false while the key is free.
func (r *Replace) onParking(ctx context.Context, d ParkedDisk) (park VM, disk Disk, found bool, err error) {
	park, err = r.Proxmox.VM(ctx, r.Parking)
	if err != nil {
		return VM{}, Disk{}, false, fmt.Errorf("look up parking VM %d: %w", r.Parking, err)
	}
	value, found := park.Config[d.ParkKey]
	if !found {
		return park, Disk{}, false, nil
	}
	disk, err = ParseDisk(d.ParkKey, value)
	if err == nil && disk.Owner != park.ID {
		err = fault.Refusedf("%s of %s is %s, which is not its own: somebody else changed it", d.ParkKey, park, disk.Volid)
	}
	return park, disk, true, err
}

// parkedOptions are the drive's options while it is parked: a backup of the
// parking VM must not copy, or lock, what is only passing through. EFI
// variables, TPM state and detached volumes have no such option.
func parkedOptions(d ParkedDisk) []string {
	if !(Disk{Key: d.Key}).Bootable() {
		return splitOptions(d.Options)
	}
	return Disk{Options: splitOptions(d.Options)}.With("backup", "0")
}

func splitOptions(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func (r *Replace) parked(ctx context.Context, d ParkedDisk) (string, error) {
	park, disk, found, err := r.onParking(ctx, d)
	if err != nil || !found || !sameOptions(disk.Options, parkedOptions(d)) {
		return "", err
	}
	return fmt.Sprintf("%s is %s of %s", disk.Volid, d.ParkKey, park), nil
}

func (r *Replace) park(ctx context.Context, d ParkedDisk) error {
	_, _, found, err := r.onParking(ctx, d)
	if err != nil {
		return err
	}
	if !found {
		if err := r.moveToParking(ctx, d); err != nil {
			return err
		}
	}
	park, disk, found, err := r.onParking(ctx, d)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("%s of VM %d: Proxmox reported it moved, but %s has no %s", d.Key, r.VM.ID, park, d.ParkKey)
	}
	return r.setOptions(ctx, park, disk, parkedOptions(d))
}

func (r *Replace) moveToParking(ctx context.Context, d ParkedDisk) error {
	vm, found, err := r.current(ctx)
	if err != nil {
		return err
	}
	value, attached := vm.Config[d.Key]
	if !found || !attached {
		return fault.WithHint(fault.Refusedf("%s of VM %d (%s) is neither there nor on parking VM %d", d.Key, r.VM.ID, d.Volid, r.Parking),
			"look for volumes of both VMs in their storage; nothing was deleted")
	}
	disk, err := ParseDisk(d.Key, value)
	switch {
	case err != nil:
		return err
	case disk.Volid != d.Volid:
		return fault.Refusedf("%s of %s is %s now, not %s as planned", d.Key, vm, disk.Volid, d.Volid)
	case disk.Owner != vm.ID:
		// Proxmox would rename it under its real owner's configuration.
		return fault.Refusedf("%s of %s belongs to VM %d", d.Key, vm, disk.Owner)
	case vm.Running:
		return fault.Refusedf("%s was started by somebody else", vm)
	}
	if err := RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	if err := r.Proxmox.MoveDisk(ctx, vm, d.Key, r.Parking, d.ParkKey); err != nil {
		return fmt.Errorf("move %s of %s to VM %d: %w", d.Key, vm, r.Parking, err)
	}
	return nil
}

func (r *Replace) setOptions(ctx context.Context, vm VM, d Disk, options []string) error {
	if sameOptions(d.Options, options) {
		return nil
	}
	d.Options = options
	if err := r.Proxmox.SetConfig(ctx, vm, map[string]string{d.Key: d.Value()}, nil); err != nil {
		return fmt.Errorf("set options of %s of %s: %w", d.Key, vm, err)
	}
	return nil
}

func (r *Replace) attachSteps() []step.Step {
	var steps []step.Step
	for _, d := range r.Disks {
		if d.System {
			continue // it stays parked: the way back
		}
		steps = append(steps, step.Step{
			ID: d.Key, Title: fmt.Sprintf("give %s back", d.Key), Risk: step.Disruptive,
			Skip: func(ctx context.Context) (string, error) { return r.attached(ctx, d) },
			Do:   func(ctx context.Context) error { return r.attach(ctx, d) },
		})
	}
	return append(steps, step.Step{ID: "compare-disks", Title: "compare the drives with the remembered ones", Do: r.compareDisks})
}

func (r *Replace) attached(ctx context.Context, d ParkedDisk) (string, error) {
	vm, found, err := r.current(ctx)
	if err != nil || !found {
		return "", err
	}
	value, ok := vm.Config[d.Key]
	if !ok {
		return "", nil
	}
	disk, err := ParseDisk(d.Key, value)
	switch {
	case err != nil:
		return "", err
	case disk.Owner != vm.ID:
		return "", fault.Refusedf("%s of %s is %s, which is not its own", d.Key, vm, disk.Volid)
	case !sameOptions(disk.Options, splitOptions(d.Options)):
		return "", nil
	}
	return fmt.Sprintf("%s is %s again", d.Key, disk.Volid), nil
}

func (r *Replace) attach(ctx context.Context, d ParkedDisk) error {
	vm, found, err := r.current(ctx)
	switch {
	case err != nil:
		return err
	case !found || vm.MadeBy() != r.Run:
		return fault.Refusedf("VM %d is not the one that run %s created", r.VM.ID, r.Run)
	}
	if _, there := vm.Config[d.Key]; !there {
		if vm, err = r.moveBack(ctx, d); err != nil {
			return err
		}
	}
	disk, err := ParseDisk(d.Key, vm.Config[d.Key])
	if err != nil {
		return fmt.Errorf("%s after its disk was moved back: %w", vm, err)
	}
	return r.setOptions(ctx, vm, disk, splitOptions(d.Options))
}

func (r *Replace) moveBack(ctx context.Context, d ParkedDisk) (VM, error) {
	park, _, found, err := r.onParking(ctx, d)
	switch {
	case err != nil:
		return VM{}, err
	case !found:
		return VM{}, fault.WithHint(fault.Refusedf("%s of VM %d is neither there nor on parking VM %d", d.Key, r.VM.ID, r.Parking),
			"look for volumes of both VMs in their storage; nothing was deleted")
	}
	if err := RequireQuorum(ctx, r.Proxmox); err != nil {
		return VM{}, err
	}
	if err := r.Proxmox.MoveDisk(ctx, park, d.ParkKey, r.VM.ID, d.Key); err != nil {
		return VM{}, fmt.Errorf("move %s of %s back to VM %d: %w", d.ParkKey, park, r.VM.ID, err)
	}
	vm, found, err := r.current(ctx)
	if err == nil && !found {
		err = fmt.Errorf("VM %d: %w", r.VM.ID, ErrNotFound)
	}
	return vm, err
}

// compareDisks makes sure that the new VM has every drive that the old one had, and no other.
func (r *Replace) compareDisks(ctx context.Context) error {
	vm, found, err := r.current(ctx)
	if err != nil || !found {
		return errors.Join(err, fault.Refusedf("VM %d is gone", r.VM.ID))
	}
	have, err := vm.Disks()
	if err != nil {
		return err
	}
	var problems []error
	expected := []string{}
	for _, d := range r.Disks {
		expected = append(expected, d.Key)
		i := slices.IndexFunc(have, func(h Disk) bool { return h.Key == d.Key })
		switch {
		case i < 0:
			problems = append(problems, fault.Refusedf("%s has no %s", vm, d.Key))
		case !d.System && !sameOptions(have[i].Options, splitOptions(d.Options)):
			problems = append(problems, fault.Refusedf("%s of %s has options %v, before: %s", d.Key, vm, have[i].Options, d.Options))
		}
	}
	for _, h := range have {
		if !h.CDROM && !slices.Contains(expected, h.Key) {
			problems = append(problems, fault.Refusedf("%s has %s (%s), which the old one had not", vm, h.Key, h.Volid))
		}
	}
	return errors.Join(problems...)
}
