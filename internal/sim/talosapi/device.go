package talosapi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/world"
)

// device is a drive as the kernel sees it.
type device struct {
	world.Drive
	name      string // "sda", "vda", "sr0"
	model     string
	transport string
	busPath   string
	serial    string // as Talos reports it, which may differ from the drive's
	wwid      string
	made      string        // serial that QEMU generates for an ATA drive without one
	disk      artefact.Disk // no partitions if blank or foreign
	foreign   bool          // its content is not a partition table of the lab
}

func (d device) path() string { return "/dev/" + d.name }

func (d device) bytes() []byte {
	if d.Media == nil {
		return nil
	}
	return d.Media.Bytes()
}

// partitionName is the device name of the partition with that index, from 1.
func (d device) partitionName(index int) string { return d.name + strconv.Itoa(index) }

// partPath is the device of what has that index on the disk: a partition, or the disk itself.
func (d device) partPath(index int) string {
	if d.disk.Partitions[index-1].Whole {
		return d.path()
	}
	return "/dev/" + d.partitionName(index)
}

// symlinks are udev's stable names, which it derives from what the device itself reports
// (60-persistent-storage.rules).
func (d device) symlinks() []string {
	model, serial := strings.ReplaceAll(d.model, " ", "_"), d.given()
	var links []string
	switch bus, _, _ := splitKey(d.Key); {
	case bus == "virtio" && serial != "":
		links = append(links, "virtio-"+serial)
	case bus == "scsi" && d.WWN != "":
		links = append(links, "scsi-3"+strings.ToLower(d.WWN))
	case bus == "scsi":
		links = append(links, "scsi-0QEMU_"+model+"_"+serial)
	case bus == "sata" || bus == "ide":
		links = append(links, "ata-"+model+"_"+serial)
	}
	if naa, ok := strings.CutPrefix(d.wwid, "naa."); ok {
		links = append(links, "wwn-0x"+naa)
	}
	for i := range links {
		links[i] = "/dev/disk/by-id/" + links[i]
	}
	return links
}

// given is the serial that the device itself reports: QEMU generates one for ATA drives
// (ide_init_drive), and for SCSI drives reports its device_id, which Proxmox sets to the
// drive's name.
func (d device) given() string {
	switch bus, _, _ := splitKey(d.Key); {
	case d.Serial != "" || bus == "virtio":
		return d.Serial
	case bus == "scsi":
		return "drive-" + d.Key
	default:
		return d.made
	}
}

// ataSerial is QEMU's serial of an ATA drive without serial=: it numbers the controllers'
// slots (ide_init1 in hw/ide/core.c). PIIX3 has two buses of two, AHCI two for each of its
// six ports, and SATA drives are on a separate controller after the machine's
// (print_drivedevice_full).
func ataSerial(bus string, n int, q35 bool) string {
	place := n + 1
	switch {
	case bus == "sata" && q35:
		place = 12 + 2*n + 1
	case bus == "sata":
		place = 4 + 2*n + 1
	case q35: // ide1 is on port 2, ide3 on port 3
		place = 2*(n/2+2*(n%2)) + 1
	}
	return fmt.Sprintf("QM%05d", place)
}

// devices are the machine's present drives, ordered by the kernel's names.
func (m *machine) devices() []device { return devicesOf(m.hw, m.drives()) }

func (m *machine) drives() []world.Drive {
	drives := m.hw.Drives()
	for i, t := 0, m.has(); i < len(drives); i++ {
		drives[i] = t.shown(drives[i])
	}
	return drives
}

func devicesOf(hw *world.Hardware, drives []world.Drive) []device {
	var devs []device
	counts := map[string]int{}
	for _, drive := range drives {
		bus, n, ok := splitKey(drive.Key)
		if !ok {
			continue // EFI and TPM state disks are invisible to the system
		}
		d := device{Drive: drive}
		d.describe(hw, bus, n)
		kind := map[string]string{"virtio": "vd"}[bus]
		switch {
		case drive.CDROM:
			kind = "sr"
		case kind == "":
			kind = "sd"
		}
		d.name = deviceName(kind, counts[kind])
		counts[kind]++
		if !drive.CDROM {
			var err error
			d.disk, err = artefact.ReadDisk(d.bytes())
			d.foreign = err != nil
		}
		devs = append(devs, d)
	}
	return devs
}

// splitKey splits "scsi1" into bus and number.
func splitKey(key string) (bus string, n int, ok bool) {
	bus = strings.TrimRight(key, "0123456789")
	n, err := strconv.Atoi(key[len(bus):])
	return bus, n, err == nil && slices.Contains([]string{"scsi", "virtio", "sata", "ide"}, bus)
}

func deviceName(kind string, n int) string {
	if kind == "sr" {
		return kind + strconv.Itoa(n)
	}
	suffix := string(rune('a' + n%26))
	if n >= 26 {
		suffix = string(rune('a'+n/26-1)) + suffix
	}
	return kind + suffix
}

// describe sets what the kernel reports about a drive, as Talos shows it: the serial from
// sysfs, which SCSI disks lack, else from udev's ata_id, which it uses only for the
// transport "ata" (block/disks.go in machined, GetProperties in go-blockdevice). The
// addresses are qemu-server's (print_drivedevice_full).
func (d *device) describe(hw *world.Hardware, bus string, n int) {
	d.model = "QEMU HARDDISK"
	if d.CDROM {
		d.model = "QEMU DVD-ROM"
	}
	switch bus {
	case "scsi":
		d.describeSCSI(hw, n)
	case "virtio":
		d.model, d.transport, d.serial = "", "virtio", d.Serial
		d.busPath = fmt.Sprintf("%s/virtio%d", pciPath(hw, 0, n+10), n+2)
		if n > 5 {
			d.busPath = fmt.Sprintf("%s/virtio%d", pciPath(hw, 2, n-5), n+2)
		}
	default:
		d.transport, d.made = "sata", ataSerial(bus, n, hw.Q35)
		if bus == "ide" && !hw.Q35 { // ata_piix
			d.transport, d.serial = "ata", strings.ReplaceAll(d.model, " ", "_")+"_"+d.given()
		}
		d.busPath = fmt.Sprintf("/pci0000:00/0000:00:01.1/ata%d/host%d/target%d:0:0/%d:0:0:0", n+1, n, n, n)
		if !d.CDROM { // libata's own page 83 (ata_scsiop_inq_83)
			d.wwid = strings.TrimSpace(fmt.Sprintf("t10.ATA     %-40s%-20s", d.model, d.given()))
		}
	}
	if d.WWN != "" && bus != "virtio" {
		d.wwid = "naa." + strings.ToLower(d.WWN) // scsi_vpd_lun_id: the last one of equal rank
	}
}

// pciPath is a device's path on the PCI bus that Proxmox assigns (get_pci_addr_map in
// PCI.pm): pci.0 is the root bus of i440fx, and like the others behind two bridges of q35
// (pve-q35-4.0.cfg).
func pciPath(hw *world.Hardware, bus, addr int) string {
	switch {
	case hw.Q35:
		return fmt.Sprintf("/pci0000:00/0000:00:1e.0/0000:05:%02x.0/0000:%02x:%02x.0", bus+1, bus+6, addr)
	case bus == 0:
		return fmt.Sprintf("/pci0000:00/0000:00:%02x.0", addr)
	}
	bridge := map[int]int{1: 0x1e, 2: 0x1f, 3: 0x05, 4: 0x1c}[bus]
	return fmt.Sprintf("/pci0000:00/0000:00:%02x.0/0000:01:%02x.0", bridge, addr)
}

// describeSCSI is describe for the controllers of scsihw. The kernel skips QEMU's kind of
// designator for a disk without WWN (designator_prio in scsi_lib.c).
func (d *device) describeSCSI(hw *world.Hardware, n int) {
	host, target, lun := 2, n, 0
	slot := pciPath(hw, 0, 5)
	switch scsihw := hw.SCSI; {
	case scsihw == "virtio-scsi-single": // one controller per disk
		d.transport, target, lun, host = "virtio", 0, n, n+2
		slot = fmt.Sprintf("%s/virtio%d", pciPath(hw, 3, n+1), n+2)
	case strings.HasPrefix(scsihw, "virtio-scsi"):
		d.transport, target, lun = "virtio", 0, n
		slot += "/virtio3"
	case scsihw == "megasas":
		d.transport, target, lun = "megaraid_sas", 0, n
	case scsihw == "pvscsi":
		d.transport = "vmw_pvscsi"
	default: // one controller per seven disks, from the third on behind pci.4
		d.transport, host, target = "spi", n/7+2, n%7
		slot = pciPath(hw, 0, 5+n/7)
		if n/7 > 1 {
			slot = pciPath(hw, 4, n/7-1)
		}
	}
	d.busPath = fmt.Sprintf("%s/host%d/target%d:0:%d/%d:0:%d:%d", slot, host, host, target, host, target, lun)
}

// selectable is the device as a configuration's disk selectors see it.
func (d device) selectable() *block.DiskSpec {
	return &block.DiskSpec{
		DevPath: d.path(), Size: uint64(d.SizeBytes), Serial: d.serial, Wwid: d.wwid, Model: d.model, Transport: d.transport,
		BusPath: d.busPath, Cdrom: d.CDROM, Rotational: true, SubSystem: "/sys/class/block", Symlinks: d.symlinks(),
		SectorSize: 512, IoSize: 512,
	}
}
