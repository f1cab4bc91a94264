package cluster

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// TalosLabels are the partition labels that Talos takes for its own wherever
// they are (machinery, constants; ETCD and the three after it since 1.14).
var TalosLabels = []string{"EFI", "BIOS", "BOOT", "META", "STATE", "EPHEMERAL", "IMAGECACHE", "ETCD", "CRI", "KUBELET", "LOG"}

// systemOnly are those that Talos makes on the system disk and nowhere else.
var systemOnly = []string{"EFI", "BIOS", "BOOT", "META", "STATE"}

const (
	userVolume = "u-"       // prefix of a user volume's label
	rawVolume  = "r-"       // of a raw volume's
	swapVolume = "s-"       // of a swap volume's, which holds nothing
	userMounts = "/var/mnt" // where user volumes are mounted

	ephemeralMount = "/var" // where EPHEMERAL is
)

// document is the kind and name of the document that the volume is made by; "" where
// it is none of such a kind (machinery, constants, and config/types/block).
func (v Volume) document() string {
	for prefix, kind := range map[string]string{userVolume: "UserVolumeConfig", rawVolume: "RawVolumeConfig", swapVolume: "SwapVolumeConfig"} {
		if name, found := strings.CutPrefix(v.Label, prefix); found {
			return kind + " " + name
		}
	}
	return ""
}

// loss is data that goes with the system disk.
type loss struct {
	name          string // what acceptLoss calls it
	what          string
	lift, command string // as of LocalData
}

// losses lists the data that only the system disk has, and the names in
// acceptLoss that are none of it.
func (c Candidate) losses() (lost []loss, unknown []string) {
	for _, v := range c.Machine.Volumes {
		switch {
		case v.Disk != c.Machine.SystemDisk, slices.Contains(TalosLabels, v.Label), strings.HasPrefix(v.Label, swapVolume):
		case v.Label == "":
			lost = append(lost, loss{name: v.Device, what: "partition " + v.Device})
		default:
			lost = append(lost, loss{name: v.Label, what: "volume " + v.Label})
		}
	}
	for _, l := range c.Found.Local {
		listed := slices.ContainsFunc(lost, func(o loss) bool { return o.name == l.Name })
		if !listed && c.onSystemDisk(l) {
			lost = append(lost, loss{name: l.Name, what: l.What, lift: l.Lift, command: l.Command})
		}
	}
	lost = append(lost, c.unseen...)
	for _, name := range c.AcceptLoss {
		if !slices.ContainsFunc(lost, func(l loss) bool { return l.name == name }) {
			unknown = append(unknown, name)
		}
	}
	return lost, unknown
}

// onSystemDisk says whether data of the node goes with the system disk. Data that
// is not proven to be on another disk counts as on this one.
func (c Candidate) onSystemDisk(l LocalData) bool {
	if l.Path == "" {
		return !c.Machine.poolElsewhere(l.Format, l.Group) && !c.Machine.bareSystemDisk()
	}
	on := c.Machine.disksOf(path.Clean("/" + l.Path))
	return len(on) == 0 || c.Machine.SystemDisk == "" || slices.Contains(on, c.Machine.SystemDisk)
}

// disksOf lists the disks that a path of the node may be on: those of the volume
// with the longest mount point above it, else those with a user volume of that
// name, else those with EPHEMERAL.
func (m Machine) disksOf(p string) []string {
	mount := ""
	for _, v := range m.Volumes {
		if len(v.Mount) > len(mount) && below(p, v.Mount) {
			mount = v.Mount
		}
	}
	if rest, user := strings.CutPrefix(p, userMounts+"/"); user && !below(mount, userMounts) {
		name, _, _ := strings.Cut(rest, "/")
		if on := m.DisksWith(userVolume + name); len(on) > 0 {
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

// poolElsewhere says whether it is proven that a volume group or pool has nothing
// on the system disk: members of it are found, and the drives of each of them are
// known to be others. A member whose group is unknown counts as one of every group.
func (m Machine) poolElsewhere(format, group string) bool {
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

// bareSystemDisk says whether the system disk has nothing but what Talos itself
// can't do without: no data is there, wherever it is. Of a machine that does not answer
// nobody knows that.
func (m Machine) bareSystemDisk() bool {
	for _, v := range m.Volumes {
		if v.Disk == m.SystemDisk && !slices.Contains(systemOnly, v.Label) {
			return false
		}
	}
	return !m.Remembered && m.SystemDisk != "" && len(m.DisksWith("EPHEMERAL")) > 0
}

// Irreplaceable is the data of the system disk that nobody has said may be lost.
func (c Candidate) Irreplaceable() []Obstacle {
	var out []Obstacle
	lost, _ := c.losses()
	for _, l := range lost {
		what, remedy := "is on the system disk", "move it to a disk of its own"
		switch {
		case slices.Contains(c.AcceptLoss, l.name):
			continue
		case slices.Contains(c.unseen, l):
			what, remedy = "may be on the system disk", "see that it answers"
		case l.lift != "":
			remedy = l.lift + "; or " + remedy
		}
		out = append(out, Obstacle{
			Text:    fmt.Sprintf("%s %s and would be lost: %s, or name %s in nodes[].acceptLoss", l.what, what, remedy, l.name),
			Command: l.command,
		})
	}
	return out
}

// sealed are encrypted volumes that could not be opened afterwards: a key that
// is locked to STATE goes with the system disk, one that is sealed to a TPM
// needs that very TPM's state.
func (c Candidate) sealed() []string {
	var out []string
	tpm := c.VM.Config["tpmstate0"] != ""
	for _, e := range c.Machine.Encryption {
		on := c.Machine.DisksWith(e.Volume)
		stays := len(on) == 0 || slices.ContainsFunc(on, func(disk string) bool { return disk != c.Machine.SystemDisk })
		if e.LockToState && stays {
			out = append(out, fmt.Sprintf("volume %s is encrypted with lockToState and would be unreadable once STATE is gone: "+
				"add a key without lockToState and remove that one, or use in-place", e.Volume))
		}
		if slices.Contains(e.Keys, "tpm") && !tpm {
			out = append(out, fmt.Sprintf("volume %s is encrypted with a TPM key, but the VM has no tpmstate0 that recast could keep: "+
				"add another key and remove that one, or use in-place", e.Volume))
		}
	}
	return out
}

// mislabelled are partitions on persistent disks that Talos, on a blank system
// disk, would take for its own: it finds its volumes by their labels on any disk.
func (c Candidate) mislabelled() []string {
	if c.Machine.SystemDisk == "" {
		return nil // not proven: refused for that already
	}
	var out []string
	seen := map[string]int{}
	for _, v := range c.Machine.Volumes {
		stays := v.Disk != c.Machine.SystemDisk
		switch {
		case stays && v.Label == "META":
			out = append(out, fmt.Sprintf("%s carries a META partition (%s): the boot ISO would take Talos for installed and halt: delete that partition", v.Disk, v.Device))
		case stays && slices.Contains(systemOnly, v.Label),
			stays && slices.Contains(TalosLabels, v.Label) && v.Phase == "":
			out = append(out, fmt.Sprintf("%s carries a %s partition (%s) that Talos does not use now and might use then: delete that partition", v.Disk, v.Label, v.Device))
		}
		if slices.Contains(TalosLabels, v.Label) || strings.HasPrefix(v.Label, userVolume) || strings.HasPrefix(v.Label, rawVolume) {
			seen[v.Label]++
			if seen[v.Label] == 2 {
				out = append(out, fmt.Sprintf("the label %s is there twice, on %s: relabel or delete what is not in use",
					v.Label, strings.Join(c.Machine.DisksWith(v.Label), " and on ")))
			}
		}
	}
	return out
}
