package talos

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"

	"github.com/recast-sh/recast/cluster"
)

func disk(id string, spec block.DiskSpec) *block.Disk {
	d := block.NewDisk(block.NamespaceName, id)
	*d.TypedSpec() = spec
	return d
}

func found(id string, spec block.DiscoveredVolumeSpec) *block.DiscoveredVolume {
	d := block.NewDiscoveredVolume(block.NamespaceName, id)
	*d.TypedSpec() = spec
	d.TypedSpec().DevPath = "/dev/" + id
	return d
}

func volumeStatus(id string, phase block.VolumePhase, location string) *block.VolumeStatus {
	s := block.NewVolumeStatus(block.NamespaceName, id)
	s.TypedSpec().Phase, s.TypedSpec().Location = phase, location
	return s
}

// A node with all that a real one has: an encrypted STATE, EPHEMERAL on a data
// disk and a stale one elsewhere, a filesystem without partition, volumes from
// the network, and devices that are no drives.
func TestBlockView(t *testing.T) {
	t.Parallel()
	v := blockView{
		disks: []*block.Disk{
			disk("vdb", block.DiskSpec{Serial: "data", Size: 20}), disk("sda", block.DiskSpec{WWID: "naa.3", Size: 10, BusPath: "/pci/2:0:0:0"}),
			disk("sdc", block.DiskSpec{Size: 5}), disk("sdd", block.DiskSpec{Size: 6}), disk("sde", block.DiskSpec{Size: 7}), disk("sdf", block.DiskSpec{Size: 8}),
			disk("sr0", block.DiskSpec{CDROM: true}), disk("loop0", block.DiskSpec{Readonly: true}), disk("loop1", block.DiskSpec{}),
			disk("dm-0", block.DiskSpec{SecondaryDisks: []string{"sda"}}), disk("rbd0", block.DiskSpec{Size: 9}), disk("sdz", block.DiskSpec{Readonly: true}),
		},
		volumes: []*block.DiscoveredVolume{
			found("sda", block.DiscoveredVolumeSpec{Name: "gpt", UUID: "gpt-a"}), found("vdb", block.DiscoveredVolumeSpec{Name: "gpt"}),
			found("sda1", block.DiscoveredVolumeSpec{Parent: "sda", Name: "luks", PartitionLabel: "STATE", PartitionUUID: "p1", UUID: "luks1"}),
			found("vdb1", block.DiscoveredVolumeSpec{Parent: "vdb", Name: "xfs", PartitionLabel: "EPHEMERAL", PartitionUUID: "p2", UUID: "fs2"}),
			found("sdf1", block.DiscoveredVolumeSpec{Parent: "sdf", Name: "xfs", PartitionLabel: "EPHEMERAL", PartitionUUID: "p3", UUID: "fs3"}),
			found("vdb2", block.DiscoveredVolumeSpec{Parent: "vdb", PartitionLabel: "u-new", PartitionUUID: "p4"}),
			found("sdc", block.DiscoveredVolumeSpec{Name: "xfs", UUID: "fs5", Label: "data"}), found("sdd", block.DiscoveredVolumeSpec{}), found("sdf", block.DiscoveredVolumeSpec{}),
			found("sr0", block.DiscoveredVolumeSpec{Name: "iso9660"}), found("dm-0", block.DiscoveredVolumeSpec{Name: "xfs", UUID: "fs6"}),
			found("rbd0", block.DiscoveredVolumeSpec{Name: "ext4", UUID: "fs7"}), found("loop0", block.DiscoveredVolumeSpec{Name: "squashfs"}),
		},
		statuses: []*block.VolumeStatus{
			volumeStatus("STATE", block.VolumePhaseReady, "/dev/sda1"), volumeStatus("EPHEMERAL", block.VolumePhaseReady, "/dev/vdb1"),
			volumeStatus("u-new", block.VolumePhaseWaiting, ""), volumeStatus("META", block.VolumePhaseMissing, ""),
		},
	}
	wantDisks := []cluster.MachineDisk{
		{Device: "sda", WWID: "naa.3", BusPath: "/pci/2:0:0:0", SizeBytes: 10},
		{Device: "sdc", SizeBytes: 5},              // a filesystem
		{Device: "sdd", SizeBytes: 6, Blank: true}, // looked at, and nothing there
		{Device: "sde", SizeBytes: 7},              // not looked at
		{Device: "sdf", SizeBytes: 8},              // a partition
		{Device: "vdb", Serial: "data", SizeBytes: 20},
	}
	if diff := cmp.Diff(wantDisks, v.machineDisks()); diff != "" {
		t.Errorf("disks (-want +got):\n%s", diff)
	}
	wantVolumes := []cluster.Volume{
		{Device: "sda1", Disk: "sda", Label: "STATE", PartitionUUID: "p1", FilesystemUUID: "luks1", Phase: "ready"},
		{Device: "sdc", Disk: "sdc", FilesystemUUID: "fs5"},
		{Device: "sdf1", Disk: "sdf", Label: "EPHEMERAL", PartitionUUID: "p3", FilesystemUUID: "fs3"},
		{Device: "vdb1", Disk: "vdb", Label: "EPHEMERAL", PartitionUUID: "p2", FilesystemUUID: "fs2", Phase: "ready"},
		{Device: "vdb2", Disk: "vdb", Label: "u-new", PartitionUUID: "p4", Phase: "waiting"},
	}
	if diff := cmp.Diff(wantVolumes, v.machineVolumes()); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}
