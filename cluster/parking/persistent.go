package parking

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Displaced lists the persistent disks that are not in their places in the blank machine, or not as they were. If
// the machine may already have had a configuration, Talos may have put a volume on a disk that had none.
func (mem Memory) Displaced(m cluster.Machine, configured bool) (problems []error) {
	vm := mem.BlankVM()
	drives, err := vm.Bootable()
	if err != nil {
		return []error{err}
	}
	refuse := func(format string, args ...any) { problems = append(problems, fault.Refusedf(format, args...)) }
	for _, was := range mem.Persistent {
		on := m.MachineDisks(vm, drives, was.Key)
		if len(on) != 1 {
			refuse("%d disks of the machine are the persistent disk %s, expected one", len(on), was.Key)
			continue
		}
		disk, had := on[0], mem.volumesOf(was)
		if disk.SizeBytes != was.SizeBytes && !mem.knownByContent(was) {
			refuse("the persistent disk %s is %s with %d bytes, and had %d before", was.Key, disk.Device, disk.SizeBytes, was.SizeBytes)
		}
		if elsewhere := mem.Elsewhere(m, was, disk); elsewhere != "" {
			refuse("%s", elsewhere)
		}
		if len(had) > 0 || configured {
			continue
		}
		now := slices.DeleteFunc(slices.Clone(m.Volumes), func(v cluster.Volume) bool { return v.Disk != disk.Device })
		unknown := slices.DeleteFunc(slices.Clone(now), func(v cluster.Volume) bool { _, later := cluster.ShownSince[v.Format]; return later })
		switch {
		case len(unknown) > 0:
			refuse("the persistent disk %s is %s, and had no volume before: now it has %s", was.Key, disk.Device, unknown[0])
		case disk.Blank != was.Blank && len(now) == 0:
			refuse("the persistent disk %s is %s, which is not as it was: blank %t, before %t", was.Key, disk.Device, disk.Blank, was.Blank)
		}
	}
	return problems
}

// Elsewhere says which volume of a persistent disk is on another disk instead.
func (mem Memory) Elsewhere(m cluster.Machine, was PersistentDisk, now cluster.MachineDisk) string {
	for _, want := range mem.volumesOf(was) {
		at := ""
		for _, v := range m.Volumes {
			if (want.SameContent(v) || m.SamePartition(want, v)) && at != now.Device {
				at = v.Disk
			}
		}
		if at != "" && at != now.Device {
			return fmt.Sprintf("the persistent volume %s is on %s, and not on %s, which is %s", want, at, now.Device, was.Key)
		}
	}
	return ""
}

// knownByContent reports whether the content of a persistent disk distinguishes it from the others.
// Its size may differ: someone may have enlarged it since.
func (mem Memory) knownByContent(p PersistentDisk) bool {
	before := cluster.Machine{Volumes: mem.Volumes}
	is := before.Identity(p.Device)
	return is != "" && !slices.ContainsFunc(mem.Persistent, func(q PersistentDisk) bool { return q.Key != p.Key && before.Identity(q.Device) == is })
}

func (mem Memory) volumesOf(was PersistentDisk) (out []cluster.Volume) {
	out = append(out, cluster.Where(mem.Volumes, func(v cluster.Volume) bool { return v.Disk == was.Device })...)
	return out
}

// PersistentDisk is a drive that outlives the system, as the machine showed it before the exchange. What the machine
// showed identifies it: the new VM must show, in that drive's place, a disk of that size with the same content.
type PersistentDisk struct {
	Key       string
	Device    string // the machine's disk, as its volumes name it
	SizeBytes uint64
	Blank     bool // it held nothing that Talos recognizes
}

// PersistentDisks returns the VM's persistent drives that each match exactly one disk of the machine; unknown are
// the others. Pods' disks are in neither.
func PersistentDisks(vm cluster.VM, m cluster.Machine, system string) (known []PersistentDisk, unknown []cluster.Disk, err error) {
	drives, err := vm.Bootable()
	if err != nil {
		return nil, nil, err
	}
	for _, d := range drives {
		if d.Key == system || d.CSI() {
			continue
		}
		on := m.MachineDisks(vm, drives, d.Key)
		if len(on) != 1 {
			unknown = append(unknown, d)
			continue
		}
		known = append(known, PersistentDisk{Key: d.Key, Device: on[0].Device, SizeBytes: on[0].SizeBytes, Blank: on[0].Blank})
	}
	return known, unknown, nil
}

// Unprovable lists the persistent disks for which a new VM could not prove that each came back to its place. A
// volume that the VM owns is renamed on its way; its drive's options, its size and its content together identify
// it. A holder's volume keeps its name.
func Unprovable(vm cluster.VM, m cluster.Machine, system string) ([]cluster.Obstacle, error) {
	known, unknown, err := PersistentDisks(vm, m, system)
	if err != nil {
		return nil, err
	}
	drives, err := vm.Bootable()
	if err != nil {
		return nil, err
	}
	var out []cluster.Obstacle
	unknown = slices.DeleteFunc(unknown, func(d cluster.Disk) bool { return d.Owner != vm.ID || nameIsUnique(drives, d) })
	if len(unknown) > 0 {
		keys := cluster.Each(unknown, func(d cluster.Disk) string { return d.Key })
		out = append(out, cluster.Obstacle{
			Text:    fmt.Sprintf("which of the machine's disks is %s can't be determined: %s", strings.Join(keys, " or "), cluster.NameThem(vm, unknown)),
			Command: cluster.NameLines(vm, unknown),
		})
	}
	for i, p := range known {
		d, _ := cluster.FindDrive(drives, p.Key)
		at := slices.IndexFunc(known[:i], func(q PersistentDisk) bool {
			other, _ := cluster.FindDrive(drives, q.Key)
			return d.Owner == vm.ID && other.Owner == vm.ID && p.SizeBytes == q.SizeBytes && p.Blank == q.Blank &&
				d.Option("serial") == other.Option("serial") && d.Option("wwn") == other.Option("wwn") &&
				m.Identity(p.Device) == m.Identity(q.Device)
		})
		if at >= 0 {
			same := "nothing that tells them apart is on them"
			if m.Identity(p.Device) != "" {
				same = "one is a copy of the other"
			}
			line := d.NameLine(vm, false)
			out = append(out, cluster.Obstacle{Command: line, Text: fmt.Sprintf("the persistent disks %s and %s have one size, and %s, so the new VM could not prove that each came back to its place: "+
				"%s gives one of them a name; the VM need not be restarted for that", known[at].Key, p.Key, same, line)})
		}
	}
	return out, nil
}

// nameIsUnique reports whether the drive's serial or WWN distinguishes it from all others.
func nameIsUnique(drives []cluster.Disk, d cluster.Disk) bool {
	for _, option := range []string{"serial", "wwn"} {
		if name := d.Option(option); name != "" && !slices.ContainsFunc(drives, func(o cluster.Disk) bool { return o.Key != d.Key && o.Option(option) == name }) {
			return true
		}
	}
	return false
}
