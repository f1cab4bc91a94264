package parking

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/words"
)

// FreePlan is an old system disk that is freed at the end of its node's roll.
type FreePlan struct {
	Parking cluster.VMID `json:"parking"`
	Key     string       `json:"key"` // on the parking VM
	Run     string       `json:"run"` // the run that replaced the disk, or had made it and was given up
	GivenUp bool         `json:"givenUp,omitempty"`
	Talos   string       `json:"talos,omitempty"`
	Volid   string       `json:"volid,omitempty"` // "": the disk is gone; only its entry in the record goes
	Size    string       `json:"size,omitempty"`
}

func (f FreePlan) String() string {
	what := "the system disk"
	if f.Volid == "" {
		what = "the entry of the system disk"
	}
	return fmt.Sprintf("%s of VM %d: %s that run %s %s, Talos %s", f.Key, f.Parking, what, f.Run, WasDone(f.GivenUp), words.OrNone(f.Talos))
}

// Freeable returns the drive of a kept disk, the zero Disk if it no longer exists, and what prevents freeing it. An
// open record does not prevent that: it is closed before.
func (p Parking) Freeable(k KeptDisk, vms []cluster.VM) (disk cluster.Disk, against []string) {
	p.Record.Open = false
	against = p.Untouchable(nil)
	if _, there := p.VM.Config[k.Key]; !there {
		return disk, against
	}
	disk, err := p.KeptDisk(k)
	if err != nil {
		return disk, append(against, err.Error())
	}
	return disk, append(against, NamedBeside(p.VM, disk, UsesOf(vms))...)
}

// NamedBeside lists what names a volume, apart from its one key on its parking VM.
func NamedBeside(park cluster.VM, disk cluster.Disk, uses []cluster.Use) []string {
	var by []string
	for _, user := range cluster.ReferencedBy(disk.Volid, []cluster.VM{park}) {
		if user != cluster.PlaceOf(park.ID, disk.Key) {
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

// KeptDisk returns the drive that an entry of the record describes. It fails unless the drive is
// exactly as recast left it.
func (p Parking) KeptDisk(k KeptDisk) (cluster.Disk, error) {
	disk, err := cluster.ParseDisk(k.Key, p.VM.Config[k.Key])
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
	case disk.CDROM, !disk.Bootable() && !k.Removed:
		return disk, fmt.Errorf("%s is no system disk: look at it", k.Key)
	case disk.Owner != p.VM.ID:
		return disk, fmt.Errorf("%s is not VM %d's own: look at it", disk.Volid, p.VM.ID)
	case entries > 1:
		return disk, fmt.Errorf("%d entries of the record are about %s: which one can't be determined", entries, k.Key)
	case !cluster.SameOptions(disk.Options, want):
		return disk, fmt.Errorf("it has the options %s, its record says %s: someone changed it, look at it",
			words.OrNone(strings.Join(disk.Options, ",")), words.OrNone(strings.Join(want, ",")))
	}
	return disk, nil
}

// Untouchable says why nothing may be changed on a parking VM.
func (p Parking) Untouchable(holders []cluster.VMID) []string {
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

// UsesOf returns the uses of volumes by the VMs themselves.
func UsesOf(vms []cluster.VM) []cluster.Use {
	var uses []cluster.Use
	for _, vm := range vms {
		use := cluster.Use{By: vm.String()}
		for key, value := range vm.Config {
			if key != "description" {
				use.Values = append(use.Values, value)
			}
		}
		uses = append(uses, use)
	}
	return uses
}

// WasDone says what the run did with a kept disk.
func WasDone(givenUp bool) string {
	if givenUp {
		return "had made and which was given up"
	}
	return "replaced"
}

// namesVolume reports whether a value of a configuration names the volume as a drive's.
func namesVolume(value, volid string) bool {
	for option := range strings.SplitSeq(value, ",") {
		if name, named, is := strings.Cut(option, "="); option == volid || is && (name == "file" || name == "volume") && named == volid {
			return true
		}
	}
	return false
}
