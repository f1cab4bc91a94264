package cluster

import (
	"slices"
	"strings"
)

const (
	formatBtrfs = "btrfs"
	formatMD    = "linux_raid_member" // a disk or partition of a software RAID
)

// ShownSince is the release of Talos that looks for a format first: with it
// go-blockdevice 2.0.30 and 2.0.32 (blkid/internal/chain). Older ones show nothing
// on such a disk, or what lies below a RAID, whose superblock may be at the end.
var ShownSince = map[string]Version{formatBtrfs: {1, 13, 5, ""}, formatMD: {1, 14, 0, ""}}

// Shows says whether the machine's Talos finds such a format. What it does not
// find can't be missed; the drive that it is on was compared in Proxmox.
func (m Machine) Shows(format string) bool {
	since, late := ShownSince[format]
	if !late {
		return true
	}
	v, err := ParseVersion(m.TalosVersion)
	return err != nil || v.Compare(since) >= 0
}

// Find is the volume of the machine that a remembered one is now.
func (m Machine) Find(want Volume) (Volume, bool) {
	i := slices.IndexFunc(m.Volumes, want.SameContent)
	if i < 0 {
		i = slices.IndexFunc(m.Volumes, func(v Volume) bool { return m.SamePartition(want, v) })
	}
	if i < 0 {
		return Volume{}, false
	}
	return m.Volumes[i], true
}

// SameContent compares two volumes by what is written on them, not by where they are plugged in.
func (v Volume) SameContent(o Volume) bool {
	return v.Label == o.Label && strings.EqualFold(v.PartitionUUID, o.PartitionUUID) && strings.EqualFold(v.FilesystemUUID, o.FilesystemUUID) &&
		(v.FilesystemLabel == "" || v.FilesystemLabel == o.FilesystemLabel) && (v.Format == "" || o.Format == "" || v.Format == o.Format)
}

// SamePartition is sameContent of a partition whose format only one of two
// releases of Talos finds: that of the machine, or the one that remembered it.
func (m Machine) SamePartition(want, have Volume) bool {
	if want.PartitionUUID == "" || want.Label != have.Label || !strings.EqualFold(want.PartitionUUID, have.PartitionUUID) {
		return false
	}
	unknown := want.Format == "" && want.FilesystemUUID == ""
	return !m.Shows(want.Format) ||
		have.Format == formatBtrfs && unknown ||
		have.Format == formatMD && (unknown || want.Format != "" && want.Format != formatMD)
}
