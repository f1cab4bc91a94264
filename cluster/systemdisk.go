package cluster

import (
	"fmt"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// ProveSystemDisk finds the drive that Talos is installed on: by what the
// running machine says of its system disk (serial, else the SCSI address, else
// a size that no other drive has), never by a guess. slot is the user's own
// word for it ("scsi0", or "" for none) and must agree.
func ProveSystemDisk(vm VM, m Machine, slot string) (Disk, error) {
	refuse := func(format string, args ...any) (Disk, error) {
		err := fault.Refusedf("%s: system disk can't be proven: %s", vm, fmt.Sprintf(format, args...))
		return Disk{}, fault.WithHint(err, "give the drive a serial= in Proxmox, restart the VM once, and try again")
	}
	disks, err := vm.Disks()
	if err != nil {
		return Disk{}, err
	}
	var candidates []Disk
	for _, d := range disks {
		if d.Bootable() {
			candidates = append(candidates, d)
		}
	}
	system, ok := m.disk(m.SystemDisk)
	if !ok {
		return refuse("the machine does not name it")
	}
	found, how := matchDisk(vm, candidates, m, system)
	switch {
	case len(found) == 0:
		return refuse("no drive matches %s (%s)", system.Device, how)
	case len(found) > 1:
		return refuse("%d drives match %s (%s)", len(found), system.Device, how)
	case slot != "" && slot != found[0].Key:
		err := fault.Refusedf("%s: system disk can't be proven: the configuration says %s, but the machine runs from %s (%s)", vm, slot, found[0].Key, how)
		return Disk{}, fault.WithHint(err, "correct or remove nodes[].systemDisk.slot")
	}
	return found[0], nil
}

func (m Machine) disk(device string) (MachineDisk, bool) {
	for _, d := range m.Disks {
		if device != "" && d.Device == device {
			return d, true
		}
	}
	return MachineDisk{}, false
}

// matchDisk finds the drives that can be the machine's disk, and says by what.
func matchDisk(vm VM, drives []Disk, m Machine, disk MachineDisk) (found []Disk, how string) {
	keep := func(match func(Disk) bool) []Disk {
		var out []Disk
		for _, d := range drives {
			if match(d) {
				out = append(out, d)
			}
		}
		return out
	}
	if disk.Serial != "" {
		if found := keep(func(d Disk) bool { return d.Option("serial") == disk.Serial }); len(found) > 0 {
			return found, "serial " + disk.Serial
		}
	}
	if key, ok := scsiKey(vm, disk.BusPath); ok {
		return keep(func(d Disk) bool { return d.Key == key && d.Option("serial") == "" }), "address " + disk.BusPath
	}
	for _, other := range m.Disks {
		if other.Device != disk.Device && other.SizeBytes == disk.SizeBytes {
			return nil, "no serial, and " + other.Device + " has the same size"
		}
	}
	return keep(func(d Disk) bool { return d.SizeBytes() == disk.SizeBytes }), fmt.Sprintf("size %d", disk.SizeBytes)
}

// scsiKey reads the drive's key off its SCSI address, host:channel:target:lun.
// With the virtio controllers qemu-server puts scsiN at LUN N of target 0
// (QemuServer.pm, print_drivedevice_full); others number differently.
func scsiKey(vm VM, busPath string) (string, bool) {
	if !strings.HasPrefix(vm.Config["scsihw"], "virtio-scsi") {
		return "", false
	}
	address := strings.Split(busPath[strings.LastIndex(busPath, "/")+1:], ":")
	if len(address) != 4 || address[1] != "0" || address[2] != "0" {
		return "", false
	}
	return "scsi" + address[3], true
}
