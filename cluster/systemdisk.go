package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// ProveSystemDisk finds the drive that Talos is installed on: by what the running machine says about its system disk
// (see matchDisk), never by a guess. slot is the drive that the user configured ("scsi0", or "" for none), and must
// be the same drive.
func ProveSystemDisk(vm VM, m Machine, slot string) (Disk, error) {
	refuse := func(format string, args ...any) (Disk, error) {
		err := fault.SystemDiskUnproven.Refusedf("%s: system disk can't be proven: %s", vm, fmt.Sprintf(format, args...))
		return Disk{}, fault.WithHint(err, "%s", NameDrives(vm))
	}
	candidates, err := vm.Bootable()
	if err != nil {
		return Disk{}, err
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
		err := fault.SystemDiskUnproven.Refusedf("%s: system disk can't be proven: the configuration says %s, but the machine runs from %s (%s)", vm, slot, found[0].Key, how)
		return Disk{}, fault.WithHint(err, "correct or remove nodes[].systemDisk.slot")
	}
	return found[0], nil
}

// NameDrives says how to make a machine show which of its disks is which drive.
func NameDrives(vm VM) string {
	return fmt.Sprintf("give the drive a name of its own that Talos shows: with qm set %d add wwn=0x3 and 15 more hex digits to it (serial= if it is a virtioN), restart the VM once, "+
		"and try again; with scsihw virtio-scsi-single SCSI drives need none", vm.ID)
}

// Bootable are the VM's drives that can be disks of the machine.
func (vm VM) Bootable() ([]Disk, error) {
	disks, err := vm.Disks()
	return slices.DeleteFunc(disks, func(d Disk) bool { return !d.Bootable() }), err
}

func (m Machine) disk(device string) (MachineDisk, bool) {
	return Find(m.Disks, func(d MachineDisk) bool { return device != "" && d.Device == device })
}

// MachineDisks returns the machine's disks that match that drive of the VM and no other.
func (m Machine) MachineDisks(vm VM, drives []Disk, key string) []MachineDisk {
	return Where(m.Disks, func(disk MachineDisk) bool {
		found, _ := matchDisk(vm, drives, m, disk)
		return len(found) == 1 && found[0].Key == key
	})
}

// PersistentVolumes returns the volumes on the VM's own persistent drives. It leaves out disks that a storage system
// attached over the network: those come and go with their pods. It fails if it can't tell which drive a volume is on:
// otherwise a lost volume would go unnoticed.
func PersistentVolumes(vm VM, drives []Disk, m Machine, system Disk) ([]Volume, error) {
	known, own := map[string]bool{}, map[string]bool{}
	var lost []Disk
	var keys []string
	for _, d := range drives {
		on := m.MachineDisks(vm, drives, d.Key)
		if len(on) != 1 {
			lost, keys = append(lost, d), append(keys, d.Key)
			continue
		}
		known[on[0].Device], own[on[0].Device] = true, d.Key != system.Key
	}
	var out []Volume
	for _, v := range m.Volumes {
		switch {
		case own[v.Disk]:
			out = append(out, v)
		case !known[v.Disk] && len(lost) > 0:
			err := fault.SystemDiskUnproven.Refusedf("what is on %s (%s) could be on %s, and which of the machine's disks that is can't be determined", v.Disk, words.OrNone(v.Label), strings.Join(keys, " or "))
			return nil, fault.WithHint(err, "%s", NameThem(vm, lost))
		}
	}
	return out, nil
}

// matchDisk finds the drives that can be the machine's disk, and says how: by a name or a bus address that both have,
// else by a size that no other disk has. It leaves out drives that match another disk of the machine by name or
// address.
func matchDisk(vm VM, drives []Disk, m Machine, disk MachineDisk) (found []Disk, how string) {
	if found, how := tellDisk(vm, drives, disk); how != "" {
		return found, how
	}
	left := slices.Clone(drives)
	for _, other := range m.Disks {
		if other.Device == disk.Device {
			continue
		}
		if told, _ := tellDisk(vm, drives, other); len(told) == 1 {
			left = slices.DeleteFunc(left, func(d Disk) bool { return d.Key == told[0].Key })
		} else if other.SizeBytes == disk.SizeBytes {
			return nil, "no serial or WWID of a drive, and " + other.Device + " has the same size"
		}
	}
	return slices.DeleteFunc(left, func(d Disk) bool {
		return disk.SizeBytes == 0 || d.SizeBytes() != disk.SizeBytes || d.contradicts(disk)
	}), fmt.Sprintf("size %d", disk.SizeBytes)
}

// tellDisk is matchDisk by the disk's own name or address only; how is "" if the disk shows neither. Talos shows no
// serial of SCSI and SATA disks: it reads serials from sysfs, where only newer kernels have them (GetProperties in
// go-blockdevice, block/disks.go in machined).
func tellDisk(vm VM, drives []Disk, disk MachineDisk) (found []Disk, how string) {
	keep := func(match func(Disk) bool) []Disk { return Where(drives, match) }
	if found := keep(func(d Disk) bool { return disk.WWID != "" && slices.Contains(d.wwids(), disk.WWID) }); len(found) > 0 {
		return found, "WWID " + disk.WWID
	}
	if found := keep(func(d Disk) bool { return disk.Serial != "" && d.hasSerial(disk.Serial) }); len(found) > 0 {
		return found, "serial " + disk.Serial
	}
	if keys, ok := addressed(vm.Config["scsihw"], disk.BusPath); ok {
		return keep(func(d Disk) bool { return slices.Contains(keys, d.Key) && !d.contradicts(disk) }), "address " + disk.BusPath
	}
	return nil, ""
}

// serial returns the drive's serial, as qemu-server reads it (print_drivedevice_full); "" for none.
func (d Disk) serial() string {
	serial, err := url.PathUnescape(d.Option("serial"))
	if err != nil {
		return ""
	}
	return serial
}

// hasSerial says whether Talos may show the drive's serial as shown: unchanged, or in the form of udev's ata_id,
// which Talos uses for IDE drives.
func (d Disk) hasSerial(shown string) bool {
	serial := d.serial()
	ata, is := strings.CutPrefix(shown, "QEMU_HARDDISK_")
	return serial != "" && (shown == serial || is && ata == serial)
}

// wwids are the names that the kernel may give the drive (scsi_vpd_lun_id in scsi_lib.c): its wwn=,
// or what libata makes of an ATA drive's model and serial.
func (d Disk) wwids() []string {
	var out []string
	if wwn, ok := strings.CutPrefix(strings.ToLower(d.Option("wwn")), "0x"); ok {
		out = append(out, naa+wwn)
	}
	if serial := d.serial(); serial != "" && (strings.HasPrefix(d.Key, "sata") || strings.HasPrefix(d.Key, "ide")) {
		out = append(out, fmt.Sprintf("t10.ATA     %-40s%s", "QEMU HARDDISK", serial))
	}
	return out
}

const naa = "naa."

// contradicts says whether the machine's disk shows a name that is not the drive's. A name that the disk does not
// show proves nothing: the name may have been set after the VM was started.
func (d Disk) contradicts(disk MachineDisk) bool {
	return strings.HasPrefix(disk.WWID, naa) && !slices.Contains(d.wwids(), disk.WWID) ||
		disk.Serial != "" && d.serial() != "" && !d.hasSerial(disk.Serial)
}

// Named returns the drive's options with this unique serial and, if the bus supports it, a WWN made
// from it: the machine would not show the serial alone. NAA 3 is for locally assigned names.
func (d Disk) Named(serial string) []string {
	d.Options = WithoutOption(d, "serial", "wwn").Options
	d.Options = append(d.Options, "serial="+serial)
	if !strings.HasPrefix(d.Key, "virtio") {
		d.Options = append(d.Options, "wwn="+WWN(serial))
	}
	return d.Options
}

// WWN derives a World Wide Name from a serial number.
func WWN(serial string) string {
	sum := sha256.Sum256([]byte(serial))
	return "0x3" + hex.EncodeToString(sum[:])[:15]
}
