package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// detach removes a disk that another VM owns from the configuration. Proxmox drops the key and
// leaves the volume alone (facts: no unusedN for foreign volumes). A hand-over would rename the
// volume while its owner's configuration still has the old name.
func (r *Replace) detach(ctx context.Context, d parking.ParkedDisk) error {
	vm, found, err := r.Powered(ctx)
	if err != nil || !found {
		return err
	}
	disk, err := cluster.ParseDisk(d.Key, vm.Config[d.Key])
	switch {
	case err != nil:
		return err
	case disk.Volid != d.Volid || disk.Owner != d.Holder:
		return fault.ParkedHalf.Refusedf("%s of %s is %s now, not %s of VM %d as planned", d.Key, vm, disk.Volid, d.Volid, d.Holder)
	case vm.Running: // Proxmox would hot-unplug it from the guest
		return startedMeanwhile(vm)
	}
	if err := cluster.RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	if err := r.Proxmox.SetConfig(ctx, vm, nil, []string{d.Key}); err != nil {
		return fmt.Errorf("detach %s from %s: %w", d.Key, vm, err)
	}
	return nil
}

// detached says whether a holder's disk has left the VM's configuration.
func (r *Replace) detached(ctx context.Context, d parking.ParkedDisk) (string, error) {
	vm, found, err := r.Current(ctx)
	if err != nil {
		return "", err
	}
	return isDetached(d, vm, found), nil
}

// onParking reads the drive under its parking key; found is false while the key is free.
func (r *Replace) onParking(ctx context.Context, d parking.ParkedDisk) (park cluster.VM, disk cluster.Disk, found bool, err error) {
	park, err = r.record().vm(ctx)
	if err != nil {
		return park, disk, false, err
	}
	disk, found, err = parkedDisk(park, d)
	return park, disk, found, err
}

// onlyOnce refuses if both VMs have a drive under the key of a disk that is handed over. It first
// finishes an interrupted hand-over; after that, one of the two is not that disk.
func (r *Replace) onlyOnce(ctx context.Context, d parking.ParkedDisk) error {
	if err := r.settle(ctx); err != nil {
		return err
	}
	park, parked, there, err := r.onParking(ctx, d)
	if err != nil || !there {
		return err
	}
	vm, found, err := r.Current(ctx)
	if err != nil || !found || vm.Config[d.Key] == "" {
		return err
	}
	return fault.WithHint(fault.ParkedHalf.Refusedf("%s has %s (%s), and %s has %s (%s): only one of them is the disk that is to change hands",
		vm, d.Key, vm.Config[d.Key], park, d.ParkKey, parked.Volid), "take the one that someone has put there away, then run the same command again; neither was touched. qm disk move gives it to another VM; qm set --delete of an unusedN would free it for good")
}

// ownerOf returns the VM whose VMID the disk's volume carries while r.VM has the disk.
func (r *Replace) ownerOf(d parking.ParkedDisk) cluster.VMID { return cmp.Or(d.Holder, r.VM.ID) }

func (r *Replace) park(ctx context.Context, d parking.ParkedDisk) error {
	if d.Holder != 0 {
		return r.detach(ctx, d)
	}
	in := parking.Intent{
		From: r.VM.ID, Key: d.Key, Volid: d.Volid, To: r.Parking, ToKey: d.ParkKey, Options: strings.Join(parking.ParkedOptions(d), ","),
	}
	found, seen, err := r.onParkingBoth(ctx, d, in)
	if err != nil {
		return err
	}
	switch {
	case found:
		err = r.onlyOnce(ctx, d)
	case d.System && r.Asks != nil:
		if err := r.Asks(ctx); err != nil {
			return err
		}
		err = r.mover().do(ctx, in, nil)
	default:
		err = r.mover().do(ctx, in, seen)
	}
	if err != nil {
		return err
	}
	park, disk, found, err := r.onParking(ctx, d)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("%s of VM %d: Proxmox reported it moved, but %s has no %s", d.Key, r.VM.ID, park, d.ParkKey)
	}
	return r.setOptions(ctx, park, disk, parking.ParkedOptions(d))
}

// onParkingBoth reports whether the parking VM has a drive under the disk's parking key. seen is both VMs as just
// read, for the hand-over; nil: the hand-over reads them itself.
func (r *Replace) onParkingBoth(ctx context.Context, d parking.ParkedDisk, in parking.Intent) (found bool, seen *pair, err error) {
	if d.System && r.Asks != nil { // Asks runs in between
		_, _, found, err = r.onParking(ctx, d)
		return found, nil, err
	}
	both, err := r.mover().read(ctx, in)
	if errors.Is(err, cluster.ErrNotFound) { // the VM may be gone while its disk is parked
		_, _, found, err = r.onParking(ctx, d)
		return found, nil, err
	}
	if err != nil {
		return false, nil, err
	}
	_, found, err = parkedDisk(both.to, d)
	return found, &both, err
}

func (r *Replace) parkSteps() []step.Step {
	steps := []step.Step{r.settleStep()}
	for _, d := range r.Disks {
		steps = append(steps, step.Step{
			ID: d.Key, Kind: "park-disk", Title: r.parkTitle(d), Risk: step.Disruptive,
			Skip: func(ctx context.Context) (string, error) { return r.parked(ctx, d) },
			Do:   func(ctx context.Context) error { return r.park(ctx, d) },
		})
	}
	return steps
}

func (r *Replace) parkTitle(d parking.ParkedDisk) string {
	switch {
	case d.Holder != 0:
		return fmt.Sprintf("detach %s, which stays with VM %d", d.Key, d.Holder)
	case r.Parking == 0: // the parking VM does not exist yet
		return fmt.Sprintf("park %s as %s of its parking VM", d.Key, d.ParkKey)
	}
	return fmt.Sprintf("park %s as %s of VM %d", d.Key, d.ParkKey, r.Parking)
}

func (r *Replace) parked(ctx context.Context, d parking.ParkedDisk) (string, error) {
	if d.Holder != 0 {
		return r.detached(ctx, d)
	}
	park, err := r.record().vm(ctx)
	if err != nil {
		return "", err
	}
	var vm cluster.VM
	if isUnused(d) {
		if vm, _, err = r.Current(ctx); err != nil {
			return "", err
		}
	}
	return isParked(park, vm, d)
}

// isParked is IsParked of a disk that the VM no longer has: an unusedN has no options that distinguish it from a
// drive that someone has detached from the parking VM.
func isParked(park, vm cluster.VM, d parking.ParkedDisk) (string, error) {
	if isUnused(d) && vm.Config[d.Key] == d.Volid {
		return "", nil
	}
	return IsParked(park, d)
}

func isUnused(d parking.ParkedDisk) bool { return strings.HasPrefix(d.Key, "unused") }

func (r *Replace) setOptions(ctx context.Context, vm cluster.VM, d cluster.Disk, options []string) error {
	if cluster.SameOptions(d.Options, options) {
		return nil
	}
	d.Options = options
	if err := r.Proxmox.SetConfig(ctx, vm, map[string]string{d.Key: d.Value()}, nil); err != nil {
		return fmt.Errorf("set options of %s of %s: %w", d.Key, vm, err)
	}
	return nil
}

func isDetached(d parking.ParkedDisk, vm cluster.VM, found bool) string {
	if _, there := vm.Config[d.Key]; found && there {
		return ""
	}
	return fmt.Sprintf("%s stays with VM %d, which owns it", d.Volid, d.Holder)
}

// IsParked says in words that the parking VM has that disk. It returns "" if not, and an error if another disk is
// under its key.
func IsParked(park cluster.VM, d parking.ParkedDisk) (string, error) {
	disk, found, err := parkedDisk(park, d)
	if err != nil || !found || !cluster.SameOptions(disk.Options, parking.ParkedOptions(d)) {
		return "", err
	}
	return fmt.Sprintf("%s is %s of %s", disk.Volid, d.ParkKey, park), nil
}

// parkedDisk returns the drive under the disk's parking key.
func parkedDisk(park cluster.VM, d parking.ParkedDisk) (disk cluster.Disk, found bool, err error) {
	value, found := park.Config[d.ParkKey]
	if !found {
		return cluster.Disk{}, false, nil
	}
	disk, err = cluster.ParseDisk(d.ParkKey, value)
	if err == nil && disk.Owner != park.ID {
		err = fault.ParkedHalf.Refusedf("%s of %s is %s, which is not its own: someone else changed it", d.ParkKey, park, disk.Volid)
	}
	return disk, true, err
}

// settle finishes the last hand-over if it was interrupted.
func (r *Replace) settle(ctx context.Context) error {
	vm, found, park, err := r.nowBoth(ctx)
	if err != nil || !found { // the VM is deleted only after every disk was handed over
		return err
	}
	return r.mover().settle(ctx, vm, park)
}

func (r *Replace) settleStep() step.Step {
	return step.Step{ID: "settle", Code: fault.ParkedHalf, Title: "see that no hand-over of a disk was cut off", Risk: step.Disruptive, Do: r.settle}
}

// isSpare says whether a hand-over is of a new system disk that was given up: its key on the parking VM is that of
// no disk that the node had.
func (r *Replace) isSpare(in parking.Intent) bool {
	at := in.ToKey
	if in.To != r.Parking { // the new disk was prepared there
		at = in.Key
	}
	return (in.To == r.Parking || r.Strategy.From() == cluster.Halfway) && !slices.ContainsFunc(r.Disks, func(d parking.ParkedDisk) bool { return d.ParkKey == at })
}

// handOverStep is the ID of the step that hands the disk over.
func (r *Replace) handOverStep(in parking.Intent) string {
	switch {
	case in.To == r.Parking && r.Strategy.From() == cluster.Halfway:
		return "park-new"
	case in.To == r.Parking:
		return parkStep + in.Key
	case !r.isSystem(in.ToKey):
	case r.Strategy.System() == cluster.SystemKept:
		return "restore-disk"
	case r.Strategy.VM() == cluster.VMAgain:
		return "renew-disk"
	case r.Strategy.Replaces():
		return "blank-disk"
	}
	return "attach/" + in.ToKey
}

// emptied is the goal of parking: every disk that must leave the VM has left it. From a VM that is to be deleted,
// every disk but the cloud-init drive must leave.
func (r *Replace) emptied(ctx context.Context) (string, error) {
	vm, found, park, err := r.nowBoth(ctx)
	if err != nil {
		return "", err
	}
	if reason, err := r.isReplaced(vm, found); err != nil || reason != "" {
		return reason, err
	}
	if missing, err := r.notParked(park, vm, found); err != nil || missing != "" {
		return "", err
	}
	if !r.Strategy.DeletesVM() {
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

// notParked returns the first disk that is not where the exchange keeps it. That a VM has lost a drive does not
// prove that the parking VM has it.
func (r *Replace) notParked(park, vm cluster.VM, found bool) (key string, err error) {
	for _, d := range r.Disks {
		if d.Holder != 0 {
			if isDetached(d, vm, found) == "" {
				return d.Key, nil
			}
			continue
		}
		if reason, err := isParked(park, vm, d); err != nil || reason == "" {
			return d.Key, err
		}
	}
	return "", nil
}
