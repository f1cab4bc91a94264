package talosapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/google/uuid"
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
	if m.has().Nameless {
		for i := range drives {
			drives[i].Serial, drives[i].WWN = "", ""
		}
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

// The labels of a system disk's partitions, in order.
const (
	labelEFI       = "EFI"
	labelBIOS      = "BIOS" // BIOS and BOOT, for GRUB, are in disk images only
	labelBoot      = "BOOT"
	labelMeta      = "META"
	labelState     = "STATE"
	labelEphemeral = "EPHEMERAL"
	userPrefix     = "u-" // prefix of a user volume's partition label
)

type medium struct {
	key   string // the drive
	image artefact.Image
	entry string // boot entry, lower-case; empty for an ISO

	kexec    bool   // a running kernel started it
	reported string // after a kexec: the entry as the system reports it
}

// halts reports whether this medium refuses to run on an installed machine.
func (m medium) halts() bool {
	return slices.Contains(strings.Fields(m.image.Cmdline), artefact.HaltIfInstalled)
}

func (m *machine) readMedium(d device) (medium, bool) {
	if d.CDROM {
		img, err := artefact.ReadISO(d.bytes())
		return medium{key: d.Key, image: img}, err == nil
	}
	l, _ := decoded[loader](d.disk, labelEFI)
	e, ok := m.selected(l)
	if !ok {
		return medium{}, false
	}
	img, err := m.fw.boots.read(e.UKI)
	if e.Cmdline != "" {
		img.Cmdline = e.Cmdline
	}
	return medium{key: d.Key, image: img, entry: strings.ToLower(e.Name)}, err == nil
}

type stateData struct {
	Config []byte
	NodeID string // changes with every install
}

// WithMachineConfig changes the machine configuration in the content of a system disk, as
// if the machine had been installed with it.
func WithMachineConfig(disk []byte, change func([]byte) []byte) ([]byte, error) {
	parsed, err := artefact.ReadDisk(disk)
	if err != nil {
		return nil, err
	}
	s, ok := decoded[stateData](parsed, labelState)
	if !ok {
		return nil, errNoState
	}
	s.Config = change(s.Config)
	if _, err := parseConfig(s.Config); err != nil {
		return nil, fmt.Errorf("read machine configuration: %w", err)
	}
	return artefact.WriteDisk(edited(parsed, labelState, func([]byte) []byte { return encoded(s) })), nil
}

func first[T any](all []T, matches func(T) bool) (one T, found bool) {
	i := slices.IndexFunc(all, matches)
	if i < 0 {
		return one, false
	}
	return all[i], true
}

func partition(d artefact.Disk, label string) (artefact.Partition, bool) {
	return first(d.Partitions, func(p artefact.Partition) bool { return p.Label == label })
}

func edited(d artefact.Disk, label string, change func([]byte) []byte) artefact.Disk {
	d.Partitions = slices.Clone(d.Partitions)
	for i := range d.Partitions {
		if d.Partitions[i].Label == label {
			d.Partitions[i].Data = change(d.Partitions[i].Data)
		}
	}
	return d
}

// adoptImages converts disks that were made from disk images to the lab's form, in which machines change them. Their
// content stays the same.
func (m *machine) adoptImages() {
	for _, d := range m.devices() {
		if !d.foreign {
			continue
		}
		if disk, err := m.fw.boots.adopted(d.bytes()); err == nil {
			d.Media.Write(artefact.WriteDisk(disk))
		}
	}
}

// adopted converts a disk that was made from a disk image. The result has one boot entry, named like the first entry
// of an installer.
func (s *bootImages) adopted(raw []byte) (artefact.Disk, error) {
	labels, uki, err := artefact.ReadDiskImage(raw)
	if err != nil {
		return artefact.Disk{}, err
	}
	img, err := artefact.ReadUKI(uki)
	if err != nil {
		return artefact.Disk{}, err
	}
	sum, err := s.keep(uki)
	if err != nil {
		return artefact.Disk{}, err
	}
	var disk artefact.Disk
	for _, label := range labels {
		p := newPartition(label, "", nil) // META has no values, or a value that only an installation reads
		if label == labelEFI {
			p = efiPartition(img.TalosVersion, sum, "")
		}
		if img.TalosVersion >= "v1.13" { // of two digits, as all since v1.10
			p.UUID = artefact.PartitionUUID(label)
		}
		disk.Partitions = append(disk.Partitions, p)
	}
	return disk, nil
}

func newPartition(label, filesystem string, data []byte) artefact.Partition {
	p := artefact.Partition{Label: label, UUID: uuid.NewString(), Filesystem: filesystem, Data: data}
	if filesystem != "" {
		p.FilesystemUUID = uuid.NewString()
	}
	return p
}

// efiPartition has a single boot entry with the image of that digest.
func efiPartition(talos, uki, cmdline string) artefact.Partition {
	name := loader{}.nextName(talos)
	return newPartition(labelEFI, "vfat", encoded(loader{Entries: []bootEntry{{Name: name, UKI: uki, Cmdline: cmdline}}}))
}

// encoded returns the JSON of a value that has only strings, numbers and flags: such values always marshal.
func encoded(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("talosapi: %v", err))
	}
	return b
}

func readState(devs []device) (stateData, bool) {
	d, _ := systemDisk(devs)
	s, ok := decoded[stateData](d.disk, labelState)
	if !ok || len(bytes.TrimSpace(s.Config)) == 0 {
		return stateData{}, false
	}
	return s, true
}

// decoded reads the JSON in a partition; false if there is none.
func decoded[T any](d artefact.Disk, label string) (v T, ok bool) {
	p, _ := partition(d, label)
	err := json.Unmarshal(p.Data, &v)
	return v, err == nil
}

// systemDisk returns the first disk with a META partition: to Talos that means "installed".
func systemDisk(devs []device) (device, bool) {
	return first(devs, func(d device) bool {
		_, ok := partition(d.disk, labelMeta)
		return ok
	})
}

// loaderDefaultVar is sd-boot's variable with the name of the entry to boot next.
const loaderDefaultVar = "/sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// loader is the content of the EFI partition. Its own default entry counts only if no firmware variable names an entry.
type loader struct {
	Default string `json:",omitempty"`
	Entries []bootEntry
}

type bootEntry struct {
	Name string // "Talos-v1.13.9.efi"
	UKI  string // SHA-256 of the boot image: see bootImages
	// Cmdline is what GRUB passes to the kernel; "": the boot image's own, as systemd-boot always does.
	Cmdline string `json:",omitempty"`
}

// entry finds a boot entry by name, like sd-boot case-insensitively.
func (l loader) entry(name string) (bootEntry, bool) {
	return first(l.Entries, func(e bootEntry) bool { return strings.EqualFold(e.Name, name) })
}

// other returns the first entry, by name, except the entry than.
func (l loader) other(than string) (string, bool) {
	names := make([]string, 0, len(l.Entries))
	for _, e := range l.Entries {
		if !strings.EqualFold(e.Name, than) {
			names = append(names, e.Name)
		}
	}
	if len(names) == 0 {
		return "", false
	}
	return slices.Min(names), true
}

// nextName returns the name of a new entry of that Talos version beside the existing entries: the version alone, or
// with the next number after a tilde (generateNextUKIName in sdboot.go).
func (l loader) nextName(version string) string {
	highest := -1
	for _, e := range l.Entries {
		base := strings.TrimSuffix(strings.TrimPrefix(e.Name, "Talos-"), ".efi")
		v, n, numbered := strings.Cut(base, "~")
		if v != version {
			continue
		}
		i, err := strconv.Atoi(n)
		if !numbered {
			i, err = 0, nil
		}
		if err == nil {
			highest = max(highest, i)
		}
	}
	if highest < 0 {
		return "Talos-" + version + ".efi"
	}
	return fmt.Sprintf("Talos-%s~%d.efi", version, highest+1)
}

// metaData holds the tags of the META partition that the lab simulates.
type metaData struct {
	Upgrade string `json:",omitempty"` // entry to fall back to
	Staged  string `json:",omitempty"` // installer to run at the next boot
}

func readMeta(d device) metaData {
	meta, _ := decoded[metaData](d.disk, labelMeta) // invalid data counts as no tags
	return meta
}

// editJSON changes the boot entries in EFI, or the tags in META, of the disk at that key. Without tags META is empty.
func editJSON[T any](m *machine, key, label string, change func(*T)) error {
	var failed error
	err := m.rewrite(key, func(disk artefact.Disk) artefact.Disk {
		return edited(disk, label, func(data []byte) []byte {
			var v T
			if len(data) > 0 || label != labelMeta {
				if failed = json.Unmarshal(data, &v); failed != nil {
					return data
				}
			}
			change(&v)
			if changed := encoded(v); string(changed) != "{}" {
				return changed
			}
			return nil
		})
	})
	return errors.Join(err, failed)
}

func (m *machine) editMeta(key string, change func(*metaData)) error {
	return editJSON(m, key, labelMeta, change)
}

// efiString returns a string variable as in efivarfs: four bytes of attributes, then UTF-16LE with a final NUL.
func efiString(s string) []byte {
	b, _ := binary.Append([]byte{7, 0, 0, 0}, binary.LittleEndian, utf16.Encode([]rune(s+"\x00"))) // numbers: no error
	return b
}

// top returns the top entry of sd-boot's menu: the newest version, and among equal versions the greatest name. A
// tilde sorts before everything, so "Talos-v1.13.9.efi" comes before "Talos-v1.13.9~1.efi", which was added after it
// (boot_entry_compare in systemd's boot.c).
func (m *machine) top(l loader) (bootEntry, bool) {
	if len(l.Entries) == 0 {
		return bootEntry{}, false
	}
	version := func(e bootEntry) string {
		img, _ := m.fw.boots.read(e.UKI) // no version if it can't be read
		return img.TalosVersion
	}
	return slices.MaxFunc(l.Entries, func(a, b bootEntry) int {
		return cmp.Or(compareVersions(version(a), version(b)), compareVersions(strings.ToLower(a.Name), strings.ToLower(b.Name)))
	}), true
}

// compareVersions does the work of strverscmp_improved of systemd: it compares numbers by value, and a suffix after a
// tilde sorts before no suffix.
func compareVersions(a, b string) int {
	for {
		a, b = strings.TrimLeftFunc(a, noVersionChar), strings.TrimLeftFunc(b, noVersionChar)
		for _, sign := range []string{"~", "", "-", "^", "."} {
			if sign == "" {
				if a == "" || b == "" {
					return cmp.Compare(len(a), len(b))
				}
				continue
			}
			hasA, hasB := strings.HasPrefix(a, sign), strings.HasPrefix(b, sign)
			switch {
			case hasA && hasB:
				a, b = a[1:], b[1:]
			case hasA:
				return -1
			case hasB:
				return 1
			}
		}
		part := isLetter
		if a != "" && isDigit(rune(a[0])) || b != "" && isDigit(rune(b[0])) {
			part = isDigit
		}
		partA, partB := leading(a, part), leading(b, part)
		a, b = a[len(partA):], b[len(partB):]
		if r := compareParts(partA, partB, part('0')); r != 0 {
			return r
		}
	}
}

// compareParts compares two numbers of any length, or two words.
func compareParts(a, b string, numbers bool) int {
	if !numbers {
		return strings.Compare(a, b)
	}
	if a == "" || b == "" { // a word sorts before a number
		return cmp.Compare(len(a), len(b))
	}
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func leading(s string, of func(rune) bool) string { return s[:len(s)-len(strings.TrimLeftFunc(s, of))] }

func isDigit(r rune) bool  { return r >= '0' && r <= '9' }
func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

func noVersionChar(r rune) bool {
	return !isDigit(r) && !isLetter(r) && !strings.ContainsRune("~-^.", r)
}

// nvramMagic is the prefix of an EFI disk's content once it was written; before that the EFI disk is blank.
const nvramMagic = "recast lab NVRAM\n"

// variables are the firmware variables that the lab simulates. They are on the VM's EFI disk, not on the system disk:
// a new system disk finds the variables that the old one has left there.
type variables struct {
	LoaderEntryDefault string `json:",omitempty"`
}

// NVRAM returns the content of the EFI disk of a machine that was installed with that image.
func NVRAM(img artefact.Image) []byte {
	return variables{LoaderEntryDefault: loader{}.nextName(img.TalosVersion)}.encode()
}

func (v variables) encode() []byte { return append([]byte(nvramMagic), encoded(v)...) }

func readVariables(content []byte) (v variables) {
	if rest, ok := bytes.CutPrefix(content, []byte(nvramMagic)); ok {
		_ = json.Unmarshal(rest, &v) // invalid variables count as none
	}
	return v
}

// uefi reports whether the machine has UEFI firmware; SeaBIOS has no variables, and the boot loader stores its
// default beside its entries.
func (m *machine) uefi() bool { return m.hw.NVRAM != nil }

// defaultEntry returns the name of the boot loader's default entry; "" if none is set.
func (m *machine) defaultEntry(l loader) string {
	if m.uefi() {
		return readVariables(m.hw.NVRAM.Bytes()).LoaderEntryDefault
	}
	return l.Default
}

func (m *machine) setDefault(key, name string) error {
	if !m.uefi() {
		return editJSON(m, key, labelEFI, func(l *loader) { l.Default = name })
	}
	v := readVariables(m.hw.NVRAM.Bytes())
	v.LoaderEntryDefault = name
	m.hw.NVRAM.Write(v.encode())
	return nil
}

// selected returns the entry that the boot loader boots: the default if it exists, else the first entry in the boot
// loader's own order (config_select_default_entry in systemd's boot.c).
func (m *machine) selected(l loader) (bootEntry, bool) {
	if e, ok := l.entry(m.defaultEntry(l)); ok {
		return e, true
	}
	return m.top(l)
}

// loadedEntry returns the entry that systemd-boot reports as loaded. An ISO's entry has the same name as the first
// entry that an installer writes: only the medium distinguishes them.
func (m *machine) loadedEntry(med medium) string {
	if med.entry == "" && m.uefi() {
		return strings.ToLower(loader{}.nextName(med.image.TalosVersion))
	}
	return med.entry
}

// bootedEntry returns the entry that the system considers as booted. After a kexec it is the entry of the variable
// LoaderEntryOneShot, which the kernel can write only with efibc; otherwise it is systemd-boot's report of the latest
// firmware boot (controllers/runtime/booted_entry.go).
func (m *machine) bootedEntry(med medium) string {
	before, _ := m.bootLoader.Load().(string)
	if m.has().NoOneShot && before != "" {
		return before
	}
	return cmp.Or(med.reported, m.loadedEntry(med))
}

// bootImages holds the machines' unified kernel images by SHA-256, as their installers contained them. Disks and
// image caches hold only the digest: a real image has a hundred MiB, of which all machines share one copy. Images are
// never removed, because a disk somewhere may still refer to them.
type bootImages struct {
	mu   sync.Mutex
	held map[string]*world.Media
}

func (s *bootImages) keep(uki []byte) (string, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256(uki))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[sum] == nil {
		m, err := world.SpooledMedia(uki)
		if err != nil {
			return "", fmt.Errorf("keep boot image: %w", err)
		}
		s.held[sum] = m
	}
	return sum, nil
}

func (s *bootImages) read(sum string) (artefact.Image, error) {
	m := look(&s.mu, func() *world.Media { return s.held[sum] })
	if m == nil {
		return artefact.Image{}, fmt.Errorf("%w: nothing with SHA-256 %s is here", artefact.ErrNotBootable, sum)
	}
	return artefact.ReadUKI(m.Bytes())
}
