package cluster

import (
	"testing"
)

// TestSameVolume: a format that only one of two releases of Talos detects is no difference;
// everything else is one.
func TestSameVolume(t *testing.T) {
	t.Parallel()
	part := func(format, uuid string) Volume {
		return Volume{Device: "sdb1", Disk: "sdb", Label: "u-data", PartitionUUID: "P", Format: format, FilesystemUUID: uuid}
	}
	whole := func(format, uuid string) Volume {
		return Volume{Device: "sdb", Disk: "sdb", Format: format, FilesystemUUID: uuid}
	}
	for name, c := range map[string]struct {
		want  Volume
		talos string
		have  []Volume
		lacks bool
	}{
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := Machine{RunningSystem: RunningSystem{TalosVersion: c.talos}, Volumes: c.have}
			if _, there := m.Find(c.want); (!there && m.Shows(c.want.Format)) != c.lacks {
				t.Errorf("%+v is missed: %v, found: %v", c.want, !c.lacks, there)
			}
		})
	}
}
