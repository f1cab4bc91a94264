package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// Use is a VM or a snapshot with the values of its configuration.
type Use struct {
	By     string // as VM prints: `VM 101 "cp1" on pve1`, or "snapshot before of VM 101 …"
	Values []string
}

// UsesOf are the uses of the VMs themselves.
func UsesOf(vms []VM) []Use {
	var uses []Use
	for _, vm := range vms {
		use := Use{By: vm.String()}
		for key, value := range vm.Config {
			if key != "description" {
				use.Values = append(use.Values, value)
			}
		}
		uses = append(uses, use)
	}
	return uses
}

// KeptDisk is the drive that an entry of the record is about. It is an error
// unless everything about it is as recast left it.
func (p Parking) KeptDisk(k KeptDisk) (Disk, error) {
	disk, err := ParseDisk(k.Key, p.VM.Config[k.Key])
	entries := 0
	for _, other := range p.Record.Kept {
		if other.Key == k.Key {
			entries++
		}
	}
	want := ParkedOptions(ParkedDisk{Key: k.Slot, Options: k.Options})
	switch {
	case err != nil:
		return disk, err
	case disk.CDROM || !disk.Bootable():
		return disk, fmt.Errorf("%s is no system disk: look at it", k.Key)
	case disk.Owner != p.VM.ID:
		return disk, fmt.Errorf("%s is not VM %d's own: look at it", disk.Volid, p.VM.ID)
	case entries > 1:
		return disk, fmt.Errorf("%d entries of the record are about %s: which one can't be told", entries, k.Key)
	case !SameOptions(disk.Options, want):
		return disk, fmt.Errorf("it has the options %s, its record says %s: somebody changed it, look at it",
			words.OrNone(strings.Join(disk.Options, ",")), words.OrNone(strings.Join(want, ",")))
	}
	return disk, nil
}

// NamedBeside lists what names a volume beside its one key of its parking VM.
func NamedBeside(park VM, disk Disk, uses []Use) []string {
	var by []string
	for _, user := range ReferencedBy(disk.Volid, []VM{park}) {
		if user != PlaceOf(park.ID, disk.Key) {
			by = append(by, user)
		}
	}
	for _, use := range uses {
		if use.By != park.String() && slices.ContainsFunc(use.Values, func(v string) bool { return namesVolume(v, disk.Volid) }) {
			by = append(by, use.By)
		}
	}
	return by
}

// namesVolume says whether a configuration's value has the volume as a drive's.
func namesVolume(value, volid string) bool {
	for option := range strings.SplitSeq(value, ",") {
		if name, named, is := strings.Cut(option, "="); option == volid || is && (name == "file" || name == "volume") && named == volid {
			return true
		}
	}
	return false
}

// Untouchable says why nothing may be changed on a parking VM.
func (p Parking) Untouchable(holders []VMID) []string {
	var out []string
	add := func(is bool, format string, args ...any) {
		if is {
			out = append(out, fmt.Sprintf("%s "+format, append([]any{p.VM}, args...)...))
		}
	}
	vm := p.VM
	add(p.Record.Open, "holds the unfinished replacement of node %s by run %s: recast roll finishes it", p.Record.Node, p.Record.Run)
	add(vm.Running, "runs, though a parking VM is never started: look at it")
	add(vm.Lock != "", "is locked (%s)", vm.Lock)
	add(vm.Template, "is a template")
	add(vm.HA, "is managed by Proxmox HA")
	add(vm.Config["parent"] != "", "has snapshots")
	add(len(vm.Pending) > 0, "has pending changes: %s", strings.Join(vm.Pending, ", "))
	add(slices.Contains(holders, vm.ID), "is a holder in recast.yaml")
	return out
}

// WasDone says what the run has to do with a kept disk.
func WasDone(givenUp bool) string {
	if givenUp {
		return "had made and which was given up"
	}
	return "replaced"
}
