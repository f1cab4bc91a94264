package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// isBlank says whether the VM's system disk is the one that this replacement made.
func (r *Replace) isBlank(vm VM) bool {
	return slices.ContainsFunc(r.Disks, func(d ParkedDisk) bool {
		disk, err := ParseDisk(d.Key, vm.Config[d.Key])
		return d.System && err == nil && disk.Option("serial") == r.Serial && disk.Owner == vm.ID
	})
}

// newParked says whether the new system disk has left the VM, and whether the
// parking VM has it as its record says.
func (r *Replace) newParked(ctx context.Context) (string, error) {
	vm, _, err := r.current(ctx)
	if err != nil || r.isBlank(vm) {
		return "", err
	}
	park, rec, err := r.parkingNow(ctx)
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
	entry, known := rec.spareEntry(r.Run, disk.Key)
	if !known || !sameOptions(disk.Options, entry.parkedOptions()) {
		return "", nil
	}
	return fmt.Sprintf("%s is %s of %s", disk.Volid, disk.Key, park), nil
}

// parkNew parks the system disk that this replacement has made: it has come to
// something else than a way back, and only recast prune frees it, or the end of a
// later roll of the node.
func (r *Replace) parkNew(ctx context.Context) error {
	vm, _, err := r.current(ctx)
	if err != nil {
		return err
	}
	if !r.isBlank(vm) {
		return r.setSpare(ctx)
	}
	if r.asks != nil {
		if err := r.asks(ctx); err != nil {
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
	err = r.handOver(ctx, Intent{
		From: vm.ID, Key: disk.Key, Volid: disk.Volid, To: r.Parking, ToKey: entry.Key, Options: strings.Join(entry.parkedOptions(), ","),
	})
	if err != nil {
		return err
	}
	return r.setSpare(ctx)
}

// newToPark reads the VM afresh, and refuses unless what it has as its system
// disk is what this replacement made, and the old one is on the parking VM.
func (r *Replace) newToPark(ctx context.Context) (vm VM, disk Disk, err error) {
	for _, d := range r.Disks {
		if !d.System {
			continue
		}
		_, _, found, err := r.onParking(ctx, d)
		switch {
		case err != nil:
			return vm, disk, err
		case !found:
			return vm, disk, fault.Refusedf("the old system disk is not on parking VM %d: the new one stays on VM %d", r.Parking, r.VM.ID)
		}
		vm, found, err = r.powered(ctx)
		switch {
		case err != nil:
			return vm, disk, err
		case !found || vm.Running || vm.MadeBy() != r.Run:
			return vm, disk, fault.Refusedf("VM %d is gone, runs, or is not of run %s", r.VM.ID, r.Run)
		case !r.isBlank(vm):
			return vm, disk, fault.Refusedf("%s of %s is %s, not the disk %s that run %s made: it stays there", d.Key, vm, words.OrNone(vm.Config[d.Key]), r.Serial, r.Run)
		}
		disk, err = ParseDisk(d.Key, vm.Config[d.Key])
		return vm, disk, err
	}
	return vm, disk, fault.ParkedHalf.Refusedf("%s: its record names no system disk", r.VM)
}

// noteSpare writes down what the new system disk is kept as before it is moved,
// so that it is never on the parking VM without anybody knowing what it is.
func (r *Replace) noteSpare(ctx context.Context, disk Disk) (entry KeptDisk, err error) {
	park, rec, err := r.parkingNow(ctx)
	if err != nil {
		return entry, err
	}
	key, err := rec.spareKey(park, disk.Key, r.Run)
	if err != nil {
		return entry, fmt.Errorf("parking VM of %s: %w", rec.Node, err)
	}
	entry = r.made
	entry.Key, entry.Run, entry.Slot, entry.Options, entry.GivenUp = key, r.Run, disk.Key, optionString(disk), true
	return entry, r.updateRecord(ctx, func(rec *Record) { rec.addSpare(entry) })
}

func (r *Record) addSpare(entry KeptDisk) {
	r.SpareKey = entry.Key
	r.Kept = slices.DeleteFunc(r.Kept, func(k KeptDisk) bool { return k.GivenUp && k.Run == entry.Run && k.Key == entry.Key })
	r.Kept = append(r.Kept, entry)
}

// setSpare sees to it that the new system disk, which the parking VM has, is
// there with its entry and its options.
func (r *Replace) setSpare(ctx context.Context) error {
	park, rec, err := r.parkingNow(ctx)
	if err != nil {
		return err
	}
	disk, there, err := r.spareOn(park, rec)
	if err != nil || !there {
		return err
	}
	entry, known := rec.spareEntry(r.Run, disk.Key)
	if !known { // somebody has put it there by hand, as the record says
		entry = r.made
		entry.Key, entry.Run, entry.Slot, entry.Options, entry.GivenUp = disk.Key, r.Run, r.old.Slot, optionString(disk), true
		if err := r.updateRecord(ctx, func(rec *Record) { rec.addSpare(entry) }); err != nil {
			return err
		}
		if park, _, err = r.parkingNow(ctx); err != nil {
			return err
		}
	}
	return r.setOptions(ctx, park, disk, entry.parkedOptions())
}

// spareOn is the new system disk on the parking VM, told by the key that was kept
// free for it and by the serial that recast has made up.
func (r *Replace) spareOn(park VM, rec Record) (disk Disk, there bool, err error) {
	value, there := park.Config[rec.SpareKey]
	if !there {
		return disk, false, nil
	}
	disk, err = ParseDisk(rec.SpareKey, value)
	return disk, err == nil && disk.Option("serial") == r.Serial, err
}

// spareEntry is what the record keeps the new system disk of a run as.
func (r Record) spareEntry(run, key string) (KeptDisk, bool) {
	i := slices.IndexFunc(r.Kept, func(k KeptDisk) bool { return k.GivenUp && k.Run == run && k.Key == key })
	if i < 0 {
		return KeptDisk{}, false
	}
	return r.Kept[i], true
}

// spareKey is where the new system disk goes on the parking VM: to the key that
// was kept free for it, or on its way to which it was cut off, else to another one.
func (r Record) spareKey(park VM, key, run string) (string, error) {
	taken := map[string]bool{}
	for key := range park.Config {
		taken[key] = true
	}
	for _, k := range r.Kept {
		if there := taken[k.Key]; !there && k.GivenUp && k.Run == run {
			return k.Key, nil
		}
		taken[k.Key] = true
	}
	if r.SpareKey != "" && !taken[r.SpareKey] {
		return r.SpareKey, nil
	}
	if r.Strategy != PutBack && !r.PutBack {
		for _, d := range r.Disks { // they come back there if it is given up later
			taken[d.ParkKey] = true
		}
	}
	return parkingKey(key, true, taken)
}

// parkedOptions are those of a kept disk's drive on the parking VM.
func (k KeptDisk) parkedOptions() []string {
	return parkedOptions(ParkedDisk{Key: k.Slot, Options: k.Options})
}

// parkingNow reads the parking VM and its record afresh.
func (r *Replace) parkingNow(ctx context.Context) (VM, Record, error) {
	park, err := r.Proxmox.VMConfig(ctx, r.Parking)
	if err != nil {
		return park, Record{}, fmt.Errorf("look up parking VM %d: %w", r.Parking, err)
	}
	rec, ok, err := ReadRecord(park)
	if err == nil && !ok {
		err = descriptionChanged(park, r.VM.Name)
	}
	return park, rec, err
}
