package talos

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"

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
	s.TypedSpec().Type, s.TypedSpec().Phase, s.TypedSpec().Location = block.VolumeTypePartition, phase, location
	return s
}

// A node with everything that a real one has: an encrypted STATE, EPHEMERAL on a
// data disk and a stale one elsewhere, a filesystem without partition, volumes from
// the network, and devices that are not drives.
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
		{Device: "sdd", SizeBytes: 6, Blank: true}, // probed, and empty
		{Device: "sde", SizeBytes: 7},              // not probed
		{Device: "sdf", SizeBytes: 8},              // a partition
		{Device: "vdb", Serial: "data", SizeBytes: 20},
	}
	if diff := cmp.Diff(wantDisks, v.machineDisks()); diff != "" {
		t.Errorf("disks (-want +got):\n%s", diff)
	}
	wantVolumes := []cluster.Volume{
		{ID: "STATE", Device: "sda1", Disk: "sda", Label: "STATE", PartitionUUID: "p1", FilesystemUUID: "luks1", Format: "luks", Phase: "ready"},
		{Device: "sdc", Disk: "sdc", FilesystemUUID: "fs5", FilesystemLabel: "data", Format: "xfs"},
		{Device: "sdf1", Disk: "sdf", Label: "EPHEMERAL", PartitionUUID: "p3", FilesystemUUID: "fs3", Format: "xfs"},
		{ID: "EPHEMERAL", Device: "vdb1", Disk: "vdb", Label: "EPHEMERAL", PartitionUUID: "p2", FilesystemUUID: "fs2", Format: "xfs", Phase: "ready"},
		{ID: "u-new", Device: "vdb2", Disk: "vdb", Label: "u-new", PartitionUUID: "p4", Phase: "waiting"},
	}
	if diff := cmp.Diff(wantVolumes, v.machineVolumes()); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}

// What Talos reports of LVM and ZFS, and of mount points.
func TestBlockViewOfPools(t *testing.T) {
	t.Parallel()
	uuid := func(n string) string { return "aaaaaa-bbbb-cccc-dddd-eeee-ffff-00000" + n }
	physical := func(id, group, uuid string) *storage.LVMPhysicalVolumeStatus {
		r := storage.NewLVMPhysicalVolumeStatus(storage.NamespaceName, id)
		r.TypedSpec().Device, r.TypedSpec().VGName, r.TypedSpec().UUID = "/dev/"+id, group, uuid
		return r
	}
	v := blockView{
		disks: []*block.Disk{
			disk("sda", block.DiskSpec{}), disk("sdb", block.DiskSpec{}), disk("sdc", block.DiskSpec{}), disk("loop3", block.DiskSpec{}),
			disk("dm-0", block.DiskSpec{SecondaryDisks: []string{"sdc"}}), disk("md0", block.DiskSpec{SecondaryDisks: []string{"sdb", "dm-0"}}),
			disk("dm-1", block.DiskSpec{SecondaryDisks: []string{"loop3"}}), disk("dm-2", block.DiskSpec{SecondaryDisks: []string{"dm-2"}}), disk("rbd0", block.DiskSpec{}),
		},
		volumes: []*block.DiscoveredVolume{
			found("sda", block.DiscoveredVolumeSpec{Name: "gpt"}), found("sda6", block.DiscoveredVolumeSpec{Parent: "sda", Name: "lvm2-pv", Label: uuid("1"), PartitionLabel: "r-lvm"}),
			found("sdb", block.DiscoveredVolumeSpec{Name: "lvm2-pv", Label: uuid("2")}), found("sdc1", block.DiscoveredVolumeSpec{Parent: "sdc", Name: "zfs", Label: "00bab10c"}),
			found("dm-0", block.DiscoveredVolumeSpec{Name: "lvm2-pv", Label: uuid("3")}), found("md0", block.DiscoveredVolumeSpec{Name: "zfs"}),
			found("dm-1", block.DiscoveredVolumeSpec{Name: "lvm2-pv", Label: uuid("4")}), found("dm-2", block.DiscoveredVolumeSpec{Name: "lvm2-pv"}),
			found("rbd0", block.DiscoveredVolumeSpec{Name: "lvm2-pv", Label: uuid("5")}), found("loop3", block.DiscoveredVolumeSpec{Name: "lvm2-pv", Label: uuid("6")}),
			found("dm-9", block.DiscoveredVolumeSpec{Name: "xfs"}),
		},
		physical: []*storage.LVMPhysicalVolumeStatus{physical("sda6", "vg0", uuid("1")), physical("mapper/x", "vg1", uuid("3")), physical("sdz", "vg1", uuid("7"))},
	}
	want := []cluster.PoolMember{
		{Device: "dm-0", Disks: []string{"sdc"}, Format: "lvm2-pv", Group: "vg1"},
		{Device: "dm-1", Format: "lvm2-pv"},
		{Device: "dm-2", Format: "lvm2-pv"},
		{Device: "loop3", Format: "lvm2-pv"},
		{Device: "md0", Disks: []string{"sdb", "sdc"}, Format: "zfs"},
		{Device: "sda6", Disks: []string{"sda"}, Format: "lvm2-pv", Group: "vg0"},
		{Device: "sdb", Disks: []string{"sdb"}, Format: "lvm2-pv"},
		{Device: "sdc1", Disks: []string{"sdc"}, Format: "zfs"},
		{Device: "sdz", Format: "lvm2-pv", Group: "vg1"},
	}
	if diff := cmp.Diff(want, v.poolMembers()); diff != "" {
		t.Errorf("pools (-want +got):\n%s", diff)
	}
}

func TestBlockViewOfMounts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mount block.MountSpec
		want  string
	}{
		"EPHEMERAL":             {block.MountSpec{TargetPath: "/var"}, "/var"},
		"user volume":           {block.MountSpec{TargetPath: "data", ParentID: "/var/mnt"}, "/var/mnt/data"},
		"LOG":                   {block.MountSpec{TargetPath: "log", ParentID: "EPHEMERAL"}, "/var/log"},
		"machine.disks":         {block.MountSpec{TargetPath: "/var/lib/extra/"}, "/var/lib/extra"},
		"mounted nowhere":       {block.MountSpec{}, ""},
		"below an unknown one":  {block.MountSpec{TargetPath: "x", ParentID: "u-data"}, ""},
		"relative, and nowhere": {block.MountSpec{TargetPath: "x"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := volumeStatus("v", block.VolumePhaseReady, "/dev/sdb1")
			s.TypedSpec().MountSpec = tc.mount
			v := blockView{
				disks:    []*block.Disk{disk("sdb", block.DiskSpec{})},
				volumes:  []*block.DiscoveredVolume{found("sdb1", block.DiscoveredVolumeSpec{Parent: "sdb", Name: "xfs"}), found("sdb2", block.DiscoveredVolumeSpec{Parent: "sdb", Name: "xfs"})},
				statuses: []*block.VolumeStatus{s},
			}
			if got := v.machineVolumes(); got[0].Mount != tc.want || got[1].Mount != "" {
				t.Errorf("mounted at %q and %q, want %q and nowhere", got[0].Mount, got[1].Mount, tc.want)
			}
		})
	}
}

// TestVolumeStatuses: volumes of every kind are known by ID and location. A partition whose volume is a directory now
// is not of Talos, whatever its label.
func TestVolumeStatuses(t *testing.T) {
	t.Parallel()
	status := func(id string, kind block.VolumeType, location string, mount block.MountSpec) *block.VolumeStatus {
		s := volumeStatus(id, block.VolumePhaseReady, location)
		s.TypedSpec().Type, s.TypedSpec().MountSpec = kind, mount
		return s
	}
	failed := volumeStatus("u-lost", block.VolumePhaseFailed, "")
	failed.TypedSpec().ErrorMessage = "no disks matched selector for volume"
	encrypted := status("r-secret", block.VolumeTypePartition, "/dev/sdc2", block.MountSpec{})
	encrypted.TypedSpec().EncryptionSlot = new(1)
	in := func(name string) block.MountSpec { return block.MountSpec{TargetPath: name, ParentID: "/var/mnt"} }
	v := blockView{
		disks: []*block.Disk{disk("sda", block.DiskSpec{}), disk("sdb", block.DiskSpec{}), disk("sdc", block.DiskSpec{}), disk("dm-0", block.DiskSpec{SecondaryDisks: []string{"sdc"}})},
		volumes: []*block.DiscoveredVolume{
			found("sda6", block.DiscoveredVolumeSpec{Parent: "sda", Name: "xfs", PartitionLabel: "ETCD"}),
			found("sdb", block.DiscoveredVolumeSpec{Name: "ext4", UUID: "b"}),
			found("sdc1", block.DiscoveredVolumeSpec{Parent: "sdc", Name: "xfs"}),
			found("sdc2", block.DiscoveredVolumeSpec{Parent: "sdc", Name: "luks", PartitionLabel: "r-secret"}),
		},
		statuses: []*block.VolumeStatus{
			status("ETCD", block.VolumeTypeDirectory, "", block.MountSpec{TargetPath: "etcd", ParentID: "/var/lib"}), status("/var/lib/cni", block.VolumeTypeDirectory, "", block.MountSpec{TargetPath: "cni"}),
			status("u-whole", block.VolumeTypeDisk, "/dev/sdb", in("whole")), status("u-dir", block.VolumeTypeDirectory, "", in("dir")),
			status("x-share", block.VolumeTypeExternal, "share0", in("share")), status("/run", block.VolumeTypeTmpfs, "", block.MountSpec{}),
			status("/dev/sdc-1", block.VolumeTypePartition, "/dev/sdc1", block.MountSpec{TargetPath: "mnt/old", ParentID: "EPHEMERAL"}), failed, encrypted,
		},
	}
	want := []cluster.VolumeStatus{
		{ID: "/dev/sdc-1", Type: "partition", Phase: "ready", Location: "/dev/sdc1", Disk: "sdc", Mount: "/var/mnt/old"},
		{ID: "ETCD", Type: "directory", Phase: "ready", Mount: "/var/lib/etcd"},
		{ID: "r-secret", Type: "partition", Phase: "ready", Location: "/dev/sdc2", Disk: "sdc", Slot: new(1)},
		{ID: "u-dir", Type: "directory", Phase: "ready", Mount: "/var/mnt/dir"},
		{ID: "u-lost", Type: "partition", Phase: "failed", Error: "no disks matched selector for volume"},
		{ID: "u-whole", Type: "disk", Phase: "ready", Location: "/dev/sdb", Disk: "sdb", Mount: "/var/mnt/whole"},
		{ID: "x-share", Type: "external", Phase: "ready", Location: "share0", Mount: "/var/mnt/share"},
	}
	if diff := cmp.Diff(want, v.volumeStatuses()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var ids []string
	for _, volume := range v.machineVolumes() {
		ids = append(ids, volume.Device+" "+volume.ID+" "+volume.Phase)
	}
	if diff := cmp.Diff([]string{"sda6  ", "sdb u-whole ready", "sdc1 /dev/sdc-1 ready", "sdc2 r-secret ready"}, ids); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
