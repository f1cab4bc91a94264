package parking

import (
	"cmp"
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
)

// DiskPlace is where a disk of an unfinished replacement is.
type DiskPlace string

// The places of a disk.
const (
	OnVM      DiskPlace = "vm"
	OnParking DiskPlace = "parking"
	Detached  DiskPlace = "holder"  // detached from the node's VM, with the VM that owns it
	Unnamed   DiskPlace = "unnamed" // without a name on its storage; a hand-over was interrupted
	Lost      DiskPlace = "unknown" // someone moved the disk
)

// DiskNow is where a disk is now.
type DiskNow struct {
	Place DiskPlace
	Volid string // its name; the last known name if the disk has none, or is lost
	Size  string // "20G"; "" if unknown
	Where string // in words: "scsi1 of VM 9090"
}

// Locate finds a disk by its present name in Proxmox: each hand-over renames its volume, and the old name may go to
// another volume. vm is the zero VM if there is none; dangling is the result of Dangling.
func (r Record) Locate(d ParkedDisk, vm, park cluster.VM, dangling bool) DiskNow {
	if d.Holder != 0 {
		return r.locateHeld(d, vm)
	}
	in := r.Intent
	moving := in != nil && (in.To == park.ID && in.ToKey == d.ParkKey || in.From == park.ID && in.Key == d.ParkKey)
	from := func(vm cluster.VM) bool { return moving && dangling && in.From == vm.ID }
	if now, ok := drive(park, d.ParkKey); ok && now.Owner == park.ID && !from(park) {
		return DiskNow{OnParking, now.Volid, now.Option("size"), fmt.Sprintf("%s of parking VM %d", d.ParkKey, park.ID)}
	}
	if now, ok := drive(vm, d.Key); ok && now.Owner == vm.ID && !from(vm) && (!d.System || sameSerial(now, d)) {
		return DiskNow{OnVM, now.Volid, now.Option("size"), fmt.Sprintf("%s of VM %d", d.Key, vm.ID)}
	}
	if moving {
		return DiskNow{
			Place: Unnamed, Volid: in.Volid,
			Where: fmt.Sprintf("without a name, on the way from %s of VM %d to %s of VM %d; recast roll finds it", in.Key, in.From, in.ToKey, in.To),
		}
	}
	return DiskNow{Place: Lost, Volid: d.Volid, Where: fmt.Sprintf("neither on VM %d nor on parking VM %d: someone moved it", r.VMID, park.ID)}
}

// locateHeld finds a holder's disk, whose volume keeps its name.
func (r Record) locateHeld(d ParkedDisk, vm cluster.VM) DiskNow {
	if now, ok := drive(vm, d.Key); ok && now.Volid == d.Volid {
		return DiskNow{OnVM, now.Volid, now.Option("size"), fmt.Sprintf("%s of VM %d, owned by VM %d", d.Key, vm.ID, d.Holder)}
	}
	return DiskNow{Place: Detached, Volid: d.Volid, Where: fmt.Sprintf("with VM %d, which owns it; detached from VM %d", d.Holder, r.VMID)}
}

// Dangling reports whether the source of the last hand-over still names a volume that Proxmox has already renamed.
func (r Record) Dangling(ctx context.Context, px cluster.StorageReader, vm, park cluster.VM) (bool, error) {
	in := r.Intent
	if in == nil {
		return false, nil
	}
	for _, vm := range []cluster.VM{vm, park} {
		if now, ok := drive(vm, in.Key); ok && vm.ID == in.From && now.Volid == in.Volid {
			have, err := px.HasVolume(ctx, vm.Host, in.Volid)
			if err != nil {
				return false, fmt.Errorf("look for %s: %w", in.Volid, err)
			}
			return !have, nil
		}
	}
	return false, nil
}

func drive(vm cluster.VM, key string) (cluster.Disk, bool) {
	d, err := cluster.ParseDisk(key, vm.Config[key])
	return d, err == nil
}

// sameSerial distinguishes an old system disk from its replacement, which has a serial that recast generated.
func sameSerial(now cluster.Disk, was ParkedDisk) bool {
	old, err := cluster.ParseDisk(was.Key, cmp.Or(was.Volid, now.Volid)+","+was.Options)
	return err == nil && now.Option("serial") == old.Option("serial")
}
