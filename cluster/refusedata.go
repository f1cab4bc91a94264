package cluster

import (
	"slices"
	"strings"
)

// TalosLabels are the partition labels that Talos takes for its own wherever
// they are (machinery, constants; ETCD and the three after it since 1.14).
var TalosLabels = []string{"EFI", "BIOS", "BOOT", "META", "STATE", "EPHEMERAL", "IMAGECACHE", "ETCD", "CRI", "KUBELET", "LOG"}

// SystemOnly are those that Talos makes on the system disk and nowhere else.
var SystemOnly = []string{"EFI", "BIOS", "BOOT", "META", "STATE"}

const (
	UserVolume = "u-"       // prefix of a user volume's label
	RawVolume  = "r-"       // of a raw volume's
	SwapVolume = "s-"       // of a swap volume's, which holds nothing
	userMounts = "/var/mnt" // where user volumes are mounted

	ephemeralMount = "/var" // where EPHEMERAL is
)

// Document is the kind and name of the document that the volume is made by; "" where
// it is none of such a kind (machinery, constants, and config/types/block).
func (v Volume) Document() string {
	for prefix, kind := range map[string]string{UserVolume: "UserVolumeConfig", RawVolume: "RawVolumeConfig", SwapVolume: "SwapVolumeConfig"} {
		if name, found := strings.CutPrefix(v.Label, prefix); found {
			return kind + " " + name
		}
	}
	return ""
}

// DisksOf lists the disks that a path of the node may be on: those of the volume
// with the longest mount point above it, else those with a user volume of that
// name, else those with EPHEMERAL.
func (m Machine) DisksOf(p string) []string {
	mount := ""
	for _, v := range m.Volumes {
		if len(v.Mount) > len(mount) && below(p, v.Mount) {
			mount = v.Mount
		}
	}
	if rest, user := strings.CutPrefix(p, userMounts+"/"); user && !below(mount, userMounts) {
		name, _, _ := strings.Cut(rest, "/")
		if on := m.DisksWith(UserVolume + name); len(on) > 0 {
			return on
		}
	}
	if mount == "" || mount == ephemeralMount {
		return m.DisksWith("EPHEMERAL")
	}
	var on []string
	for _, v := range m.Volumes {
		if v.Mount == mount {
			on = append(on, v.Disk)
		}
	}
	return on
}

// below says whether a path is dir or in it.
func below(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// PoolElsewhere says whether it is proven that a volume group or pool has nothing
// on the system disk: members of it are found, and the drives of each of them are
// known to be others. A member whose group is unknown counts as one of every group.
func (m Machine) PoolElsewhere(format, group string) bool {
	found := false
	for _, member := range m.PoolMembers {
		if member.Format != format || group != "" && member.Group != "" && member.Group != group {
			continue
		}
		if len(member.Disks) == 0 || slices.Contains(member.Disks, m.SystemDisk) {
			return false
		}
		found = true
	}
	return found && m.SystemDisk != ""
}

// BareSystemDisk says whether the system disk has nothing but what Talos itself
// can't do without: no data is there, wherever it is. Of a machine that does not answer
// nobody knows that.
func (m Machine) BareSystemDisk() bool {
	for _, v := range m.Volumes {
		if v.Disk == m.SystemDisk && !slices.Contains(SystemOnly, v.Label) {
			return false
		}
	}
	return !m.Remembered && m.SystemDisk != "" && len(m.DisksWith("EPHEMERAL")) > 0
}
