package talosapi

import (
	"context"
	"maps"
	"slices"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/world"
)

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
		r := block.NewSystemDisk(block.NamespaceName, block.SystemDiskID)
		r.TypedSpec().DiskID, r.TypedSpec().DevPath = d.name, d.path()
		system = append(system, r)
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

// diskInputs is everything that the resources of disks depend on.
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

// disks are the drives and the loop device of the system's image.
func disks(devs []device) []resource.Resource {
	loop := block.NewDisk(block.NamespaceName, "loop0")
	loop.TypedSpec().DevPath, loop.TypedSpec().Readonly, loop.TypedSpec().SectorSize = "/dev/loop0", true, 512
	loop.TypedSpec().SetSize(72 * mib)
	rs := []resource.Resource{loop}
	for _, d := range devs {
		r := block.NewDisk(block.NamespaceName, d.name)
		*r.TypedSpec() = block.DiskSpec{
			DevPath: d.path(), IOSize: 512, SectorSize: 512, CDROM: d.CDROM, Model: d.model, Serial: d.serial, WWID: d.wwid, BusPath: d.busPath,
			SubSystem: "/sys/class/block", Transport: d.transport, Rotational: true, Symlinks: d.symlinks(),
		}
		r.TypedSpec().SetSize(uint64(d.SizeBytes))
		rs = append(rs, r)
	}
	return rs
}

// discoveredVolumes are the disks and partitions with their detected content.
func (r release) discoveredVolumes(devs []device) []resource.Resource {
	var rs []resource.Resource
	for _, d := range devs {
		v := block.NewDiscoveredVolume(block.NamespaceName, d.name)
		*v.TypedSpec() = block.DiscoveredVolumeSpec{DevPath: d.path(), Type: "disk", DevicePath: d.busPath, SectorSize: 512, IOSize: 512}
		v.TypedSpec().SetSize(uint64(d.SizeBytes))
		switch {
		case d.CDROM && len(d.bytes()) > 0:
			v.TypedSpec().Name = "iso9660"
		case len(d.disk.Partitions) > 0:
			v.TypedSpec().Name = "gpt"
		}
		rs = append(rs, v)
		sizes := partitionSizes(d)
		for i, p := range d.disk.Partitions {
			name := d.partitionName(i + 1)
			if p.Whole {
				whole := rs[len(rs)-1].(*block.DiscoveredVolume).TypedSpec()
				whole.Name, whole.UUID = shownAs(p)
				continue
			}
			v := block.NewDiscoveredVolume(block.NamespaceName, name)
			*v.TypedSpec() = block.DiscoveredVolumeSpec{
				DevPath: "/dev/" + name, Type: "partition", DevicePath: d.busPath, Parent: d.name, ParentDevPath: d.path(),
				SectorSize: 512, IOSize: 512,
				PartitionUUID: p.UUID, PartitionLabel: p.Label, PartitionIndex: uint(i + 1),
			}
			v.TypedSpec().Name, v.TypedSpec().UUID = shownAs(p)
			if inPool(p) { // their identity is not a UUID, so probes report it as a label (blkid, filesystems/lvm2 and zfs)
				v.TypedSpec().UUID, v.TypedSpec().Label = "", p.FilesystemUUID
			}
			if slices.Contains(r.unprobed, p.Filesystem) {
				v.TypedSpec().Name, v.TypedSpec().UUID = "", ""
			}
			v.TypedSpec().SetSize(sizes[i])
			rs = append(rs, v)
		}
	}
	return rs
}

// shownAs is what a probe finds in a partition.
func shownAs(p artefact.Partition) (format, uuid string) {
	if p.Keys != nil {
		return "luks", p.UUID // the header's: one that stays, and is not that of what is inside
	}
	return p.Filesystem, p.FilesystemUUID
}

// partitionSizes are Talos' fixed sizes; the other partitions share the rest.
func partitionSizes(d device) []uint64 {
	fixed := map[string]uint64{labelEFI: 2 * gib, labelBIOS: mib, labelBoot: 2000 * mib, labelMeta: mib, labelState: 100 * mib}
	rest, sharing := uint64(max(d.SizeBytes, 0)), uint64(0)
	for _, p := range d.disk.Partitions {
		size, ok := fixed[p.Label]
		if !ok {
			sharing++
		}
		rest -= min(size, rest)
	}
	sizes := make([]uint64, 0, len(d.disk.Partitions))
	for _, p := range d.disk.Partitions {
		size, ok := fixed[p.Label]
		if !ok {
			size = rest / sharing
		}
		sizes = append(sizes, size)
	}
	return sizes
}

// volumeStatuses are the locations of all volumes that Talos manages.
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
		case v.kind == block.VolumeTypeDirectory || v.kind == block.VolumeTypeExternal:
			spec.Phase, spec.Location, spec.MountLocation, spec.MountSpec = block.VolumePhaseReady, v.source, v.source, v.mountSpec()
		case !found && v.id == labelState && cfg != nil: // during the installation
			spec.Phase, spec.ErrorMessage = block.VolumePhaseFailed, "no such attribute(s): system_disk"
		case !found && (v.fixed || v.existing != nil): // it is not made
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
func (b *boot) notOpen(id string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed[id]
}

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
