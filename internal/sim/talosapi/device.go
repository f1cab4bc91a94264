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

// device is a drive as the kernel shows it; its Serial is what the kernel reads, QEMU's own where none was given.
type device struct {
	world.Drive
	name      string // "sda", "vda", "sr0"
	model     string
	transport string
	busPath   string
	disk      artefact.Disk // no partitions when blank or foreign
	foreign   bool          // holds bytes that are no partition table of ours
}

func (d device) path() string { return "/dev/" + d.name }

func (d device) bytes() []byte {
	if d.Media == nil {
		return nil
	}
	return d.Media.Bytes()
}

// partitionName is the device of the partition with that index, counted from 1.
func (d device) partitionName(index int) string { return d.name + strconv.Itoa(index) }

// symlinks are udev's stable names.
func (d device) symlinks() []string {
	if d.Serial == "" {
		return nil
	}
	if strings.HasPrefix(d.Key, "virtio") {
		return []string{"/dev/disk/by-id/virtio-" + d.Serial}
	}
	return []string{"/dev/disk/by-id/scsi-0QEMU_" + strings.ReplaceAll(d.model, " ", "_") + "_" + d.Serial}
}

// devices are the machine's drives as they are now, in the order of the kernel's names.
func (m *machine) devices() []device { return devicesOf(m.hw.Drives()) }

func devicesOf(drives []world.Drive) []device {
	var devs []device
	counts := map[string]int{}
	for _, drive := range drives {
		bus, n, ok := splitKey(drive.Key)
		if !ok {
			continue // an EFI or TPM state disk is the firmware's, not the system's
		}
		d := device{Drive: drive}
		d.describe(bus, n)
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

// splitKey cuts "scsi1" into bus and number.
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

// describe fills what QEMU shows of a drive; the addresses are those of
// Proxmox' virtio-scsi-single, which gives each disk a controller of its own.
func (d *device) describe(bus string, n int) {
	d.model = "QEMU HARDDISK"
	if d.CDROM {
		d.model = "QEMU DVD-ROM"
	}
	switch bus {
	case "scsi":
		d.transport = "virtio"
		d.busPath = fmt.Sprintf("/pci0000:00/0000:00:05.0/0000:01:%02x.0/virtio%d/host%d/target%d:0:0/%d:0:0:%d/", n+1, n+2, n+2, n+2, n+2, n)
		if d.Serial == "" {
			d.Serial = "drive-scsi" + strconv.Itoa(n)
		}
	case "virtio":
		d.model, d.transport = "", "virtio"
		d.busPath = fmt.Sprintf("/pci0000:00/0000:00:%02x.0/virtio%d/", n+10, n+2)
	default:
		d.transport = "ata"
		d.busPath = fmt.Sprintf("/pci0000:00/0000:00:01.1/ata%d/host%d/target%d:0:0/%d:0:0:0/", n+1, n, n, n)
		if d.Serial == "" {
			d.Serial = fmt.Sprintf("QM%05d", n+1)
		}
	}
}

// selectable is the device as disk selectors of a configuration see it.
func (d device) selectable() *block.DiskSpec {
	return &block.DiskSpec{
		DevPath: d.path(), Size: uint64(d.SizeBytes), Serial: d.Serial, Model: d.model, Transport: d.transport,
		BusPath: d.busPath, Cdrom: d.CDROM, Rotational: true, SubSystem: "/sys/class/block", Symlinks: d.symlinks(),
		SectorSize: 512, IoSize: 512,
	}
}
