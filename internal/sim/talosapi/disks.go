package talosapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	blockpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"

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
	made      string        // serial that QEMU generates for an ATA drive without a serial
	disk      artefact.Disk // no partitions if blank or foreign
	foreign   bool          // its content is not a partition table of the lab
}

func (d device) path() string { return "/dev/" + d.name }

// called reports whether a path in a configuration means the device.
func (d device) called(path string) bool {
	return d.path() == path || slices.Contains(d.symlinks(), path)
}

func (d device) bytes() []byte {
	if d.Media == nil {
		return nil
	}
	return d.Media.Bytes()
}

// partitionName returns the device name of the partition with that index, from 1.
func (d device) partitionName(index int) string { return d.name + strconv.Itoa(index) }

// partPath returns the device path of the part with that index: of a partition, or of the disk itself.
func (d device) partPath(index int) string {
	if d.disk.Partitions[index-1].Whole {
		return d.path()
	}
	return "/dev/" + d.partitionName(index)
}

// symlinks returns udev's stable names, which udev derives from what the device itself reports
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

// given returns the serial that the device itself reports. QEMU generates a serial for ATA drives (ide_init_drive),
// and for SCSI drives reports the device_id, which Proxmox sets to the drive's name.
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

// ataSerial returns QEMU's serial of an ATA drive without serial=: QEMU numbers the controllers' slots (ide_init1 in
// hw/ide/core.c). PIIX3 has two buses of two, AHCI two for each of its six ports, and SATA drives are on a separate
// controller after the machine's (print_drivedevice_full).
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

// devices returns the machine's present drives, ordered by the kernel's names.
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

// describe sets what the kernel reports about a drive, as Talos shows it: the serial from sysfs, which SCSI disks
// lack, else from udev's ata_id, which Talos uses only for the transport "ata" (block/disks.go in machined,
// GetProperties in go-blockdevice). The addresses are qemu-server's (print_drivedevice_full).
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

// pciPath returns a device's path on the PCI bus that Proxmox assigns (get_pci_addr_map in PCI.pm): pci.0 is the root
// bus of i440fx. On q35, pci.0 is behind two bridges like the other buses (pve-q35-4.0.cfg).
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

// describeSCSI does the work of describe for the controllers of scsihw. The kernel skips QEMU's kind of designator
// for a disk without WWN (designator_prio in scsi_lib.c).
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

// selectable returns the device as a configuration's disk selectors see it.
func (d device) selectable() *blockpb.DiskSpec {
	return &blockpb.DiskSpec{
		DevPath: d.path(), Size: uint64(d.SizeBytes), Serial: d.serial, Wwid: d.wwid, Model: d.model, Transport: d.transport,
		BusPath: d.busPath, Cdrom: d.CDROM, Rotational: true, SubSystem: "/sys/class/block", Symlinks: d.symlinks(),
		SectorSize: 512, IoSize: 512,
	}
}

const (
	gib = 1 << 30
	mib = 1 << 20
)

// publishBlock probes the machine's disks and publishes their content as resources.
func (b *boot) publishBlock(ctx context.Context) error {
	b.probing.Lock()
	defer b.probing.Unlock()
	inputs := b.look()
	if b.probed.equal(inputs) {
		return nil
	}
	b.probed = nil // until everything is published
	devs := devicesOf(b.m.hw, inputs.drives)
	var system []resource.Resource
	if d, ok := systemDisk(devs); ok {
		spec := block.SystemDiskSpec{DiskID: d.name, DevPath: d.path()}
		system = append(system, filled(block.NewSystemDisk(block.NamespaceName, block.SystemDiskID), spec))
	}
	published := []struct {
		ns   resource.Namespace
		kind resource.Type
		rs   []resource.Resource
	}{
		{block.NamespaceName, block.DiskType, disks(devs)},
		{block.NamespaceName, block.DiscoveredVolumeType, b.release().discoveredVolumes(devs)},
		{block.NamespaceName, block.SystemDiskType, system},
		{block.NamespaceName, block.VolumeStatusType, b.volumeStatuses(devs)},
		{runtime.NamespaceName, runtime.MetaKeyType, metaKeys(devs)},
		{runtime.NamespaceName, runtime.MountStatusType, b.mountStatuses(devs)},
		{storage.NamespaceName, storage.LVMPhysicalVolumeStatusType, physicalVolumes(devs)},
	}
	for _, p := range published {
		if slices.Contains(b.release().lacks, p.kind) {
			continue
		}
		if err := b.store.replace(ctx, p.ns, p.kind, p.rs); err != nil {
			return err
		}
	}
	b.probed = inputs
	return nil
}

// diskInputs holds everything that the resources of disks depend on.
type diskInputs struct {
	drives []world.Drive
	writes []uint64 // of their media
	config config.Provider
}

func (b *boot) look() *diskInputs {
	s := &diskInputs{drives: b.m.drives(), config: b.config()}
	for _, d := range s.drives {
		n := uint64(0)
		if d.Media != nil {
			n = d.Media.Writes()
		}
		s.writes = append(s.writes, n)
	}
	return s
}

func (s *diskInputs) equal(o *diskInputs) bool {
	return s != nil && s.config == o.config && slices.Equal(s.drives, o.drives) && slices.Equal(s.writes, o.writes)
}

// disks returns the drives and the loop device of the system's image.
func disks(devs []device) []resource.Resource {
	loop := block.NewDisk(block.NamespaceName, "loop0")
	*loop.TypedSpec() = block.DiskSpec{DevPath: "/dev/loop0", Readonly: true, SectorSize: 512}
	loop.TypedSpec().SetSize(72 * mib)
	rs := []resource.Resource{loop}
	for _, d := range devs {
		r := filled(block.NewDisk(block.NamespaceName, d.name), block.DiskSpec{
			DevPath: d.path(), IOSize: 512, SectorSize: 512, CDROM: d.CDROM, Model: d.model, Serial: d.serial, WWID: d.wwid, BusPath: d.busPath,
			SubSystem: "/sys/class/block", Transport: d.transport, Rotational: true, Symlinks: d.symlinks(),
		})
		r.TypedSpec().SetSize(uint64(d.SizeBytes))
		rs = append(rs, r)
	}
	return rs
}

// discoveredVolumes returns the disks and partitions with their detected content.
func (r release) discoveredVolumes(devs []device) []resource.Resource {
	var rs []resource.Resource
	for _, d := range devs {
		whole := filled(block.NewDiscoveredVolume(block.NamespaceName, d.name),
			block.DiscoveredVolumeSpec{DevPath: d.path(), Type: "disk", DevicePath: d.busPath, SectorSize: 512, IOSize: 512})
		whole.TypedSpec().SetSize(uint64(d.SizeBytes))
		switch {
		case d.CDROM && len(d.bytes()) > 0:
			whole.TypedSpec().Name = "iso9660"
		case len(d.disk.Partitions) > 0:
			whole.TypedSpec().Name = "gpt"
		}
		rs = append(rs, whole)
		sizes := partitionSizes(d)
		for i, p := range d.disk.Partitions {
			name := d.partitionName(i + 1)
			if p.Whole {
				whole.TypedSpec().Name, whole.TypedSpec().UUID = shownAs(p)
				continue
			}
			spec := block.DiscoveredVolumeSpec{
				DevPath: "/dev/" + name, Type: "partition", DevicePath: d.busPath, Parent: d.name, ParentDevPath: d.path(),
				SectorSize: 512, IOSize: 512,
				PartitionUUID: p.UUID, PartitionLabel: p.Label, PartitionIndex: uint(i + 1),
			}
			spec.Name, spec.UUID = shownAs(p)
			if inPool(p) { // their identity is not a UUID, so probes report it as a label (blkid, filesystems/lvm2 and zfs)
				spec.UUID, spec.Label = "", p.FilesystemUUID
			}
			if slices.Contains(r.unprobed, p.Filesystem) {
				spec.Name, spec.UUID = "", ""
			}
			spec.SetSize(sizes[i])
			rs = append(rs, filled(block.NewDiscoveredVolume(block.NamespaceName, name), spec))
		}
	}
	return rs
}

// shownAs returns what a probe finds in a partition.
func shownAs(p artefact.Partition) (format, uuid string) {
	if p.Keys != nil {
		return "luks", p.UUID // the LUKS header's: it stays, and differs from the UUID of what is inside
	}
	return p.Filesystem, p.FilesystemUUID
}

// partitionSizes returns Talos' fixed sizes; the other partitions share the rest.
func partitionSizes(d device) []uint64 {
	fixed := map[string]uint64{labelEFI: 2 * gib, labelBIOS: mib, labelBoot: 2000 * mib, labelMeta: mib, labelState: 100 * mib}
	rest, sharing := uint64(max(d.SizeBytes, 0)), uint64(0)
	sizes := make([]uint64, len(d.disk.Partitions))
	for i, p := range d.disk.Partitions {
		if sizes[i] = fixed[p.Label]; sizes[i] == 0 {
			sharing++
		}
		rest -= min(sizes[i], rest)
	}
	for i := range sizes {
		if sizes[i] == 0 {
			sizes[i] = rest / sharing
		}
	}
	return sizes
}

// volumeStatuses returns the locations of all volumes that Talos manages.
func (b *boot) volumeStatuses(devs []device) []resource.Resource {
	cfg := b.config()
	var rs []resource.Resource
	for _, v := range volumesOf(cfg) {
		r := block.NewVolumeStatus(block.NamespaceName, v.id)
		spec := r.TypedSpec()
		spec.Type = v.kind
		p, found := v.locate(devs)
		cannot := v.cannot(devs)
		switch {
		case !v.onDisk():
			spec.Phase, spec.Location, spec.MountLocation, spec.MountSpec = block.VolumePhaseReady, v.source, v.source, v.mountSpec()
		case !found && v.id == labelState && cfg != nil: // during the installation
			spec.Phase, spec.ErrorMessage = block.VolumePhaseFailed, "no such attribute(s): system_disk"
		case !found && (v.fixed || v.existing != nil): // the volume is not made
			spec.Phase = block.VolumePhaseMissing
		case cannot != "" && (!found || v.kind == block.VolumeTypeDisk):
			spec.Phase, spec.ErrorMessage = block.VolumePhaseFailed, cannot
		case !found:
			spec.Phase = block.VolumePhaseWaiting
		default:
			place(spec, p)
			spec.MountSpec = v.mountSpec()
			if why := b.notOpen(v.id); why != "" {
				spec.Phase, spec.PreFailPhase, spec.ErrorMessage = block.VolumePhaseFailed, block.VolumePhaseLocated, why
			} else if len(v.keys) > 0 && p.part.Keys != nil {
				spec.EncryptionProvider, spec.EncryptionSlot = block.EncryptionProviderLUKS2, new(slices.Min(slices.Collect(maps.Keys(v.keys))))
			}
		}
		rs = append(rs, r)
	}
	return rs
}

// notOpen says why Talos could not open a volume in this boot.
func (b *boot) notOpen(id string) string { return look(&b.mu, func() string { return b.failed[id] }) }

func place(spec *block.VolumeStatusSpec, p placed) {
	spec.Phase = block.VolumePhaseReady
	spec.Location = p.dev.partPath(p.index)
	spec.MountLocation = spec.Location
	if !p.part.Whole {
		spec.ParentLocation = p.dev.path()
		spec.PartitionIndex = p.index
	}
	spec.UUID, spec.PartitionUUID = p.part.FilesystemUUID, p.part.UUID
	if p.part.Filesystem == "xfs" {
		spec.Filesystem = block.FilesystemTypeXFS
	}
	spec.SetSize(partitionSizes(p.dev)[p.index-1])
}

const lvmPhysicalVolume = "lvm2-pv"

// inPool reports whether a partition is a physical volume of LVM or a part of a ZFS pool.
func inPool(p artefact.Partition) bool {
	return p.Filesystem == lvmPhysicalVolume || p.Filesystem == "zfs"
}

// physicalVolumes returns the physical volumes that pvs shows on the machine (LVMScanController,
// internal/app/machined/pkg/controllers/storage/lvm_scan.go).
func physicalVolumes(devs []device) []resource.Resource {
	var rs []resource.Resource
	for _, d := range devs {
		for i, p := range d.disk.Partitions {
			if p.Filesystem != lvmPhysicalVolume {
				continue
			}
			name := d.partitionName(i + 1)
			spec := storage.LVMPhysicalVolumeStatusSpec{
				Device: "/dev/" + name, VGName: p.VolumeGroup, UUID: p.FilesystemUUID, Format: "lvm2", Allocatable: "allocatable",
			}
			rs = append(rs, filled(storage.NewLVMPhysicalVolumeStatus(storage.NamespaceName, name), spec))
		}
	}
	return rs
}

// Describe describes a disk's content in one line, without what every install or build regenerates (the UUIDs of the
// system partitions, the node's identity, the installer's digest), so that equal systems have equal descriptions. For
// data volumes it includes UUID and content; for an etcd member its name and whether it votes, not its random ID.
func Describe(content []byte) string {
	if len(content) == 0 {
		return "blank"
	}
	if strings.HasPrefix(string(content), nvramMagic) {
		return "NVRAM boots " + readVariables(content).LoaderEntryDefault
	}
	return eachPartition(content, "; ", describePartition)
}

func eachPartition(content []byte, separator string, text func(artefact.Partition) string) string {
	disk, err := artefact.ReadDisk(content)
	if err != nil {
		return "foreign " + digest(content)
	}
	parts := make([]string, 0, len(disk.Partitions))
	for _, p := range disk.Partitions {
		parts = append(parts, text(p))
	}
	return strings.Join(parts, separator)
}

func describePartition(p artefact.Partition) string {
	switch p.Label {
	case labelMeta:
		return strings.TrimSpace(p.Label + " " + string(p.Data))
	case labelEFI:
		var l loader
		if json.Unmarshal(p.Data, &l) != nil {
			return p.Label + " without boot entries"
		}
		var entries []string
		for _, e := range l.Entries {
			entries = append(entries, fmt.Sprintf("%s %.16s", e.Name, e.UKI))
		}
		boots := ""
		if l.Default != "" {
			boots = " boots " + l.Default + " of"
		}
		return fmt.Sprintf("%s%s [%s]", p.Label, boots, strings.Join(entries, ", "))
	case labelState:
		var s stateData
		if json.Unmarshal(p.Data, &s) != nil {
			return p.Label + " unreadable"
		}
		return p.Label + " config " + digest(imageDigest.ReplaceAll(s.Config, nil))
	}
	users, d := splitEtcd(p.Data)
	text := fmt.Sprintf("%s %s %s %s", p.Label, p.UUID, p.FilesystemUUID, digest(users))
	if d != nil {
		text += map[bool]string{true: " etcd learner ", false: " etcd voter "}[d.Learner] + d.Name
	}
	return text
}

// imageDigest depends on the build time of an installer.
var imageDigest = regexp.MustCompile(`@sha256:[0-9a-f]{64}`)

func digest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b))[:16] }
