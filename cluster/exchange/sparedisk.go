package exchange

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// IsBlank reports whether the VM's system disk is the one that this replacement made.
func (r *Replace) IsBlank(vm cluster.VM) bool {
	return slices.ContainsFunc(r.Disks, func(d parking.ParkedDisk) bool {
		disk, err := cluster.ParseDisk(d.Key, vm.Config[d.Key])
		return d.System && err == nil && disk.Option("serial") == r.Serial && disk.Owner == vm.ID
	})
}

// newParked is the goal of ParkNew: the new system disk has left the VM, and if the parking VM has
// it, it is there as the record says.
func (r *Replace) newParked(ctx context.Context) (string, error) {
	vm, _, err := r.Current(ctx)
	if err != nil || r.IsBlank(vm) {
		return "", err
	}
	park, rec, err := r.record().read(ctx)
	if err != nil {
		return "", err
	}
	disk, there, err := r.spareOn(park, rec)
	switch {
	case err != nil:
		return "", err
	case !there:
		return "no disk of this replacement is left on the VM", nil
	}
	entry, known := rec.SpareEntry(r.Run, disk.Key)
	if !known || !cluster.SameOptions(disk.Options, entry.ParkedOptions()) {
		return "", nil
	}
	return fmt.Sprintf("%s is %s of %s", disk.Volid, disk.Key, park), nil
}

// newToPark reads the VM again. It refuses unless this replacement made the VM's system disk and
// the old one, which a new VM never had, is on the parking VM.
func (r *Replace) newToPark(ctx context.Context) (vm cluster.VM, disk cluster.Disk, err error) {
	for _, d := range r.Disks {
		if !d.System {
			continue
		}
		_, _, found, err := r.onParking(ctx, d)
		switch {
		case err != nil:
			return vm, disk, err
		case !found && r.Strategy.From() != cluster.Nowhere:
			return vm, disk, fault.Refusedf("the old system disk is not on parking VM %d: the new one stays on VM %d", r.Parking, r.VM.ID)
		}
		vm, _, err = r.Powered(ctx)
		switch {
		case err != nil:
			return vm, disk, err
		case vm.Running || vm.MadeBy() != r.Run:
			return vm, disk, fault.Refusedf("VM %d is gone, runs, or is not of run %s", r.VM.ID, r.Run)
		case !r.IsBlank(vm):
			return vm, disk, fault.Refusedf("%s of %s is %s, not the disk %s that run %s made: it stays there", d.Key, vm, words.OrNone(vm.Config[d.Key]), r.Serial, r.Run)
		}
		disk, err = cluster.ParseDisk(d.Key, vm.Config[d.Key])
		return vm, disk, err
	}
	return vm, disk, fault.ParkedHalf.Refusedf("%s: its record names no system disk", r.VM)
}

// noteSpare records the new system disk before it is moved, so that it is never on the parking VM
// without an entry.
func (r *Replace) noteSpare(ctx context.Context, disk cluster.Disk) (entry parking.KeptDisk, err error) {
	park, rec, err := r.record().read(ctx)
	if err != nil {
		return entry, err
	}
	key, err := rec.SpareDrive(park, disk.Key, r.Run)
	if err != nil {
		return entry, fmt.Errorf("parking VM of %s: %w", rec.Node, err)
	}
	entry = r.Made
	entry.Key, entry.Run, entry.Slot, entry.Options, entry.GivenUp = key, r.Run, disk.Key, cluster.OptionString(disk), true
	return entry, r.record().update(ctx, func(rec *parking.Record) { rec.AddSpare(entry) })
}

// ParkNew parks the system disk that this replacement made. A rollback never uses it; only recast
// prune, or the end of a later roll of the node, frees it.
func (r *Replace) ParkNew(ctx context.Context) error {
	vm, _, err := r.Current(ctx)
	if err != nil {
		return err
	}
	if !r.IsBlank(vm) {
		return r.setSpare(ctx)
	}
	if r.Asks != nil {
		if err := r.Asks(ctx); err != nil {
			return err
		}
	}
	vm, disk, err := r.newToPark(ctx)
	if err != nil {
		return err
	}
	entry, err := r.noteSpare(ctx, disk)
	if err != nil {
		return err
	}
	err = r.mover().do(ctx, parking.Intent{
		From: vm.ID, Key: disk.Key, Volid: disk.Volid, To: r.Parking, ToKey: entry.Key, Options: strings.Join(entry.ParkedOptions(), ","),
	}, nil)
	if err != nil {
		return err
	}
	return r.setSpare(ctx)
}

// setSpare makes sure that the new system disk on the parking VM has its entry and its options.
func (r *Replace) setSpare(ctx context.Context) error {
	park, rec, err := r.record().read(ctx)
	if err != nil {
		return err
	}
	disk, there, err := r.spareOn(park, rec)
	if err != nil || !there {
		return err
	}
	entry, known := rec.SpareEntry(r.Run, disk.Key)
	if !known { // it was moved there by hand, to the key in the record
		entry = r.Made
		entry.Key, entry.Run, entry.Slot, entry.Options, entry.GivenUp = disk.Key, r.Run, r.old.Slot, cluster.OptionString(disk), true
		if err := r.record().update(ctx, func(rec *parking.Record) { rec.AddSpare(entry) }); err != nil {
			return err
		}
		if park, _, err = r.record().read(ctx); err != nil {
			return err
		}
	}
	return r.setOptions(ctx, park, disk, entry.ParkedOptions())
}

// spareOn returns the new system disk on the parking VM, identified by the key that was reserved
// for it and the serial that recast generated.
func (r *Replace) spareOn(park cluster.VM, rec parking.Record) (disk cluster.Disk, there bool, err error) {
	value, there := park.Config[rec.SpareKey]
	if !there {
		return disk, false, nil
	}
	disk, err = cluster.ParseDisk(rec.SpareKey, value)
	return disk, err == nil && disk.Option("serial") == r.Serial, err
}
