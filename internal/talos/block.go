package talos

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"

	"github.com/recast-sh/recast/cluster"
)

// blockView holds a machine's disks and their contents, as the machine's resources report them.
type blockView struct {
	disks    []*block.Disk
	volumes  []*block.DiscoveredVolume
	statuses []*block.VolumeStatus
	physical []*storage.LVMPhysicalVolumeStatus
}

// imageMeta is the UUID of the partition META in each disk image since Talos 1.13. An installer makes a new UUID for
// each disk, and an upgrade leaves the partitions as they are (createPartitions in
// cmd/installer/pkg/install/install.go, and GUIDFromLabel in pkg/makefs).
const imageMeta = "cf04f137-101e-8ec6-9627-fa3f51cdabb8"

func isImageMeta(v *block.VolumeStatus) bool {
	return v.Metadata().ID() == constants.MetaPartitionLabel && strings.EqualFold(v.TypedSpec().PartitionUUID, imageMeta)
}

// readDisks does the same as readBlock without the disks' contents: no disk counts as blank.
func readDisks(ctx context.Context, s session, m *cluster.Machine) error {
	var v blockView
	err := v.read(ctx, s, &m.SystemDisk, false)
	m.FromImage = slices.ContainsFunc(v.statuses, isImageMeta)
	m.Disks, m.VolumeStatuses = v.machineDisks(), v.volumeStatuses()
	return err
}

// read reads everything except physical, and the device of the system disk. It reads the volumes only with contents.
func (v *blockView) read(ctx context.Context, s session, system *string, contents bool) error {
	reads := []func() error{
		listing(ctx, s, block.NewDisk(block.NamespaceName, "").Metadata(), &v.disks),
		getting(ctx, s, block.NewSystemDisk(block.NamespaceName, block.SystemDiskID).Metadata(), func(d *block.SystemDisk) {
			*system = d.TypedSpec().DiskID
		}),
		listing(ctx, s, block.NewVolumeStatus(block.NamespaceName, "").Metadata(), &v.statuses),
	}
	if contents {
		reads = append(reads, listing(ctx, s, block.NewDiscoveredVolume(block.NamespaceName, "").Metadata(), &v.volumes))
	}
	return inParallel(reads...)
}

func readBlock(ctx context.Context, s session, m *cluster.Machine) error {
	var v blockView
	err := v.read(ctx, s, &m.SystemDisk, true)
	if err != nil {
		return err
	}
	if v.physical, err = readPhysicalVolumes(ctx, s, v.volumes); err != nil {
		return err
	}
	m.FromImage = slices.ContainsFunc(v.statuses, isImageMeta)
	m.Disks, m.Volumes, m.VolumeStatuses, m.PoolMembers = v.machineDisks(), v.machineVolumes(), v.volumeStatuses(), v.poolMembers()
	if !s.blank {
		return nil
	}
	for _, d := range m.Disks {
		if v.whole(d.Device) == nil {
			m.Unmet = append(m.Unmet, "disks: "+d.Device+" has not been probed yet")
		}
	}
	m.Ready = m.Ready && len(m.Unmet) == 0
	return nil
}

// virtualDisks are the name prefixes of block devices that are not drives of the VM: the kernel makes these devices
// from other devices or from the network.
var virtualDisks = []string{"loop", "ram", "zram", "dm-", "md", "nbd", "rbd", "drbd"}

func isDrive(d *block.Disk) bool {
	spec := d.TypedSpec()
	return !spec.CDROM && !spec.Readonly && len(spec.SecondaryDisks) == 0 &&
		!slices.ContainsFunc(virtualDisks, func(prefix string) bool { return strings.HasPrefix(d.Metadata().ID(), prefix) })
}

func (v blockView) machineDisks() []cluster.MachineDisk {
	var out []cluster.MachineDisk
	for _, d := range v.disks {
		if !isDrive(d) {
			continue
		}
		spec, device := d.TypedSpec(), d.Metadata().ID()
		out = append(out, cluster.MachineDisk{
			Device: device, Serial: spec.Serial, WWID: spec.WWID, BusPath: spec.BusPath, SizeBytes: spec.Size, Blank: v.blank(device),
		})
	}
	slices.SortFunc(out, func(a, b cluster.MachineDisk) int { return cmp.Compare(a.Device, b.Device) })
	return out
}

// whole returns what was found on the disk as a whole; nil if the disk was not probed.
func (v blockView) whole(disk string) *block.DiscoveredVolumeSpec {
	if found, there := byID(v.volumes, disk); there {
		return found.TypedSpec()
	}
	return nil
}

// blank reports whether the disk was probed and is empty.
func (v blockView) blank(disk string) bool {
	whole := v.whole(disk)
	if whole == nil || whole.Name != "" || whole.UUID != "" || whole.Label != "" {
		return false
	}
	return !slices.ContainsFunc(v.volumes, func(found *block.DiscoveredVolume) bool { return found.TypedSpec().Parent == disk })
}

// partitionTables are the formats of a partitioned disk as a whole. Such a disk is not itself a volume.
var partitionTables = []string{"", "gpt", "mbr", "dos"}

// machineVolumes returns the drives' partitions, and the drives that consist of one filesystem.
func (v blockView) machineVolumes() []cluster.Volume {
	drives := map[string]bool{}
	for _, d := range v.disks {
		drives[d.Metadata().ID()] = isDrive(d)
	}
	var out []cluster.Volume
	for _, found := range v.volumes {
		spec, device := found.TypedSpec(), found.Metadata().ID()
		disk := cmp.Or(spec.Parent, device)
		if !drives[disk] || disk == device && slices.Contains(partitionTables, spec.Name) {
			continue
		}
		of := v.managed(spec)
		volume := cluster.Volume{
			Device: device, Disk: disk, Label: spec.PartitionLabel,
			PartitionUUID: spec.PartitionUUID, FilesystemUUID: spec.UUID, FilesystemLabel: spec.Label, Format: spec.Name,
		}
		if of != nil {
			volume.ID, volume.Phase = of.Metadata().ID(), of.TypedSpec().Phase.String()
			if of.TypedSpec().Location != "" {
				volume.Mount = mountOf(of.TypedSpec().MountSpec)
			}
		}
		out = append(out, volume)
	}
	slices.SortFunc(out, func(a, b cluster.Volume) int { return cmp.Compare(a.Device, b.Device) })
	return out
}

// managed returns the Talos volume on this device, or the volume that Talos would put on this partition because of
// its label; nil if there is none. A volume that Talos has elsewhere does not count. A volume that is a directory
// does not count either: Talos 1.14 has ETCD, CRI, KUBELET and LOG on EPHEMERAL, whatever partition has that label,
// unless its configuration provisions them (volumeconfig/system_volumes.go, GetPromotableSystemVolumesTransformer).
func (v blockView) managed(found *block.DiscoveredVolumeSpec) *block.VolumeStatus {
	for _, s := range v.statuses {
		if location := s.TypedSpec().Location; location != "" && location == found.DevPath {
			return s
		}
	}
	for _, s := range v.statuses {
		if spec := s.TypedSpec(); spec.Location == "" && found.PartitionLabel != "" && s.Metadata().ID() == found.PartitionLabel && spec.Type == block.VolumeTypePartition {
			return s
		}
	}
	return nil
}

// readPhysicalVolumes reads LVM's physical volumes, if the machine has any. Talos reports physical volumes since 1.14
// (LVMScanController, controllers/storage).
func readPhysicalVolumes(ctx context.Context, s session, volumes []*block.DiscoveredVolume) ([]*storage.LVMPhysicalVolumeStatus, error) {
	if !slices.ContainsFunc(volumes, func(found *block.DiscoveredVolume) bool { return found.TypedSpec().Name == cluster.FormatLVM }) {
		return nil, nil
	}
	return list[*storage.LVMPhysicalVolumeStatus](ctx, s, storage.NewLVMPhysicalVolumeStatus(storage.NamespaceName, "").Metadata())
}

// poolMembers returns the devices that carry a part of a volume group or of a ZFS pool. A part on a network device
// (RBD) is not on this machine.
func (v blockView) poolMembers() []cluster.PoolMember {
	var out []cluster.PoolMember
	seen := map[string]bool{}
	for _, found := range v.volumes {
		spec, device := found.TypedSpec(), found.Metadata().ID()
		on := cmp.Or(spec.Parent, device)
		if spec.Name != cluster.FormatLVM && spec.Name != cluster.FormatZFS || strings.HasPrefix(on, "rbd") {
			continue
		}
		member := cluster.PoolMember{Device: device, Disks: v.drivesUnder(on), Format: spec.Name}
		if spec.Name == cluster.FormatLVM {
			// The probe has the UUID of the physical volume as its label (blkid, filesystems/lvm2).
			seen[spec.Label] = true
			member.Group = v.groupOf(spec.Label)
		}
		out = append(out, member)
	}
	for _, pv := range v.physical {
		if spec := pv.TypedSpec(); !seen[spec.UUID] { // missing, or on a device that was not probed
			out = append(out, cluster.PoolMember{Device: strings.TrimPrefix(spec.Device, "/dev/"), Format: cluster.FormatLVM, Group: spec.VGName})
		}
	}
	slices.SortFunc(out, func(a, b cluster.PoolMember) int { return cmp.Compare(a.Device, b.Device) })
	return out
}

// groupOf returns the volume group of the physical volume with this UUID.
func (v blockView) groupOf(uuid string) string {
	for _, pv := range v.physical {
		if uuid != "" && pv.TypedSpec().UUID == uuid {
			return pv.TypedSpec().VGName
		}
	}
	return ""
}

// drivesUnder returns the drives below a device: the device itself, or the drives below an encrypted, mapped or
// mirrored device. It returns none if one of them is not a drive.
func (v blockView) drivesUnder(device string) []string {
	disk, found := byID(v.disks, device)
	switch {
	case !found:
		return nil
	case isDrive(disk):
		return []string{device}
	}
	var out []string
	for _, below := range disk.TypedSpec().SecondaryDisks {
		if below == device {
			return nil
		}
		drives := v.drivesUnder(below)
		if len(drives) == 0 {
			return nil
		}
		out = append(out, drives...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// holding are the types of volumes that hold data. Talos makes volumes of other types anew at each boot, as well as
// the directories that every machine has (volumeconfig/system_volumes.go), whose IDs are paths.
var holding = []block.VolumeType{block.VolumeTypePartition, block.VolumeTypeDisk, block.VolumeTypeDirectory, block.VolumeTypeExternal}

// volumeStatuses returns the volumes of the machine's configuration that hold data, sorted by ID.
func (v blockView) volumeStatuses() []cluster.VolumeStatus {
	var out []cluster.VolumeStatus
	for _, s := range v.statuses {
		id, spec := s.Metadata().ID(), s.TypedSpec()
		if !slices.Contains(holding, spec.Type) || spec.Type == block.VolumeTypeDirectory && path.IsAbs(id) {
			continue
		}
		out = append(out, cluster.VolumeStatus{
			ID: id, Type: cluster.VolumeType(spec.Type.String()), Phase: spec.Phase.String(), Error: spec.ErrorMessage,
			Location: spec.Location, Disk: v.driveAt(spec.Location), Mount: mountOf(spec.MountSpec), Slot: spec.EncryptionSlot,
		})
	}
	slices.SortFunc(out, func(a, b cluster.VolumeStatus) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// driveAt returns the drive that is the device, or that has the device as a partition; "" if there is none.
func (v blockView) driveAt(location string) string {
	device, is := strings.CutPrefix(location, "/dev/")
	if !is {
		return ""
	}
	for _, found := range v.volumes {
		if spec := found.TypedSpec(); spec.DevPath == location {
			device = cmp.Or(spec.Parent, found.Metadata().ID())
		}
	}
	if d, found := byID(v.disks, device); !found || !isDrive(d) {
		return ""
	}
	return device
}

// mountOf returns the path at which Talos mounts a volume. The parent of a mount is a directory, or EPHEMERAL
// (volumeconfig/system_volumes.go).
func mountOf(spec block.MountSpec) string {
	switch target, parent := spec.TargetPath, spec.ParentID; {
	case target == "":
	case parent == constants.EphemeralPartitionLabel:
		return path.Join(constants.EphemeralMountPoint, target)
	case path.IsAbs(parent):
		return path.Join(parent, target)
	case parent == "" && path.IsAbs(target):
		return path.Clean(target)
	}
	return ""
}
