package cluster

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestSameVolume: a format that only one of two releases of Talos detects is no difference; everything else is one.
func TestSameVolume(t *testing.T) {
	t.Parallel()
	part := func(format, uuid string) Volume {
		return Volume{Device: "sdb1", Disk: "sdb", Label: "u-data", PartitionUUID: "P", Format: format, FilesystemUUID: uuid}
	}
	whole := func(format, uuid string) Volume {
		return Volume{Device: "sdb", Disk: "sdb", Format: format, FilesystemUUID: uuid}
	}
	type testCase struct {
		want  Volume
		talos string
		have  []Volume
		lacks bool
	}
	must.Each(t, map[string]testCase{
		"as it was":                        {part("xfs", "f"), "v1.14.1", []Volume{part("xfs", "F")}, false},
		"another filesystem":               {part("xfs", "f"), "v1.14.1", []Volume{part("xfs", "g")}, true},
		"no filesystem any more":           {part("xfs", "f"), "v1.14.1", []Volume{part("", "")}, true},
		"btrfs, newly detected":            {part("", ""), "v1.13.9", []Volume{part("btrfs", "b")}, false},
		"btrfs where there was xfs":        {part("xfs", "f"), "v1.14.1", []Volume{part("btrfs", "b")}, true},
		"btrfs of a UUID that is recorded": {part("", "b"), "v1.14.1", []Volume{part("btrfs", "c")}, true},
		"btrfs of another partition":       {part("", ""), "v1.14.1", []Volume{{Label: "u-data", PartitionUUID: "q", Format: "btrfs", FilesystemUUID: "b"}}, true},
		"btrfs, no longer detected":        {part("btrfs", "b"), "v1.13.4", []Volume{part("", "")}, false},
		"btrfs that should be detected":    {part("btrfs", "b"), "v1.13.5", []Volume{part("", "")}, true},
		"ext4 where nothing was shown":     {part("", ""), "v1.14.1", []Volume{part("ext4", "e")}, true},
		"a RAID, newly detected":           {part("xfs", "f"), "v1.14.0", []Volume{part("linux_raid_member", "m")}, false},
		"a RAID of others":                 {part("linux_raid_member", "m"), "v1.14.0", []Volume{part("linux_raid_member", "n")}, true},
		"a RAID, no longer detected":       {part("linux_raid_member", "m"), "v1.13.9", []Volume{part("xfs", "f")}, false},
		"a disk of btrfs":                  {whole("btrfs", "b"), "v1.12.6", nil, false},
		"a disk of btrfs that is gone":     {whole("btrfs", "b"), "v1.13.9", nil, true},
		"a disk of xfs that is gone":       {whole("xfs", "f"), "v1.12.6", nil, true},
		"no version":                       {whole("btrfs", "b"), "", nil, true},
	}, func(t *testing.T, c testCase) {
		m := Machine{RunningSystem: RunningSystem{TalosVersion: c.talos}, Volumes: c.have}
		if _, there := m.Find(c.want); (!there && m.Shows(c.want.Format)) != c.lacks {
			t.Errorf("%+v is missed: %v, found: %v", c.want, !c.lacks, there)
		}
	})
}

func TestPodVolumesAreThoseThatHandlesName(t *testing.T) {
	t.Parallel()
	type testCase struct {
		value, handle string
		want          bool
	}
	must.Each(t, map[string]testCase{
		"on the host":                {"fast:vm-9999-media,size=1G", "lab/pve1/fast/vm-9999-media", true},
		"under the VM's own number":  {"fast:vm-9031-disk-7", "lab/pve1/fast/vm-9031-disk-7", true},
		"on a shared storage":        {"ceph:vm-9999-media", "lab//ceph/vm-9999-media", true},
		"in a file":                  {"nfs:9999/vm-9999-media.qcow2", "lab//nfs/9999/vm-9999-media.qcow2", true},
		"on another host":            {"fast:vm-9999-media", "lab/pve2/fast/vm-9999-media", false},
		"made on another host":       {"ceph:vm-9999-pvc-0b5f", "lab/pve2/ceph/vm-9999-pvc-0b5f", true},
		"on another storage":         {"slow:vm-9999-media", "lab/pve1/fast/vm-9999-media", false},
		"another one":                {"fast:vm-9999-media", "lab/pve1/fast/vm-9999-media-2", false},
		"named so, and of no handle": {"fast:vm-9999-pvc-0b5f", "lab/pve1/fast/vm-9999-pvc-77", false},
		"a handle that is none":      {"fast:vm-9999-media", "vm-9999-media", false},
		"a CD drive":                 {"fast:vm-9999-media,media=cdrom", "lab/pve1/fast/vm-9999-media", false},
	}, func(t *testing.T, c testCase) {
		vm := VM{ID: 9031, Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-9031-disk-0", "scsi7": c.value}}
		vm.Pods = vm.PodVolumes([]string{"x/y/z/a", c.handle})
		disks := must.Get(vm.Disks())(t)
		d := disks[1]
		must.Equal(t, d.Volid+" is a pod's", []bool{false, c.want}, []bool{disks[0].CSI(), d.CSI()})
	})
}

func TestInitiatorName(t *testing.T) {
	t.Parallel()
	const id = "4c4c4544004f5a10805ac7c04f4a3233"
	for protocol, want := range map[string]string{
		ISCSI:  "iqn.2017-11.dev.talos:" + id,
		NVMeoF: "nqn.2017-11.dev.talos:uuid:34633463-3435-3434-3030-346635613130",
	} {
		must.Equal(t, string(protocol), want, InitiatorName(protocol, id))
	}
	must.Equal(t, "of an unknown machine", "", InitiatorName(ISCSI, ""))
}
