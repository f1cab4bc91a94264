package strategy

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// Irreplaceable lists the data of the system disk that acceptLoss does not name.
func (c Candidate) Irreplaceable() []cluster.Obstacle {
	var out []cluster.Obstacle
	lost, _ := losses(c)
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
		out = append(out, cluster.Obstacle{
			Text:    fmt.Sprintf("%s %s and would be lost: %s, or name %s in nodes[].acceptLoss", l.what, what, remedy, l.name),
			Command: l.command,
		})
	}
	return out
}

// losses lists the data that only the system disk has, and the names in acceptLoss that match none
// of it.
func losses(c Candidate) (lost []loss, unknown []string) {
	for _, v := range c.Machine.Volumes {
		switch {
		case v.Disk != c.Machine.SystemDisk, slices.Contains(cluster.TalosLabels, v.Label), strings.HasPrefix(v.Label, cluster.SwapVolume):
		case v.Label == "":
			lost = append(lost, loss{name: v.Device, what: "partition " + v.Device})
		default:
			lost = append(lost, loss{name: v.Label, what: "volume " + v.Label})
		}
	}
	for _, l := range c.Found.Local {
		listed := slices.ContainsFunc(lost, func(o loss) bool { return o.name == l.Name })
		if !listed && onSystemDisk(c, l) {
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

// mislabelled lists partitions on persistent disks that Talos would treat as its own once the
// system disk is blank: it finds its volumes by their labels on any disk.
func mislabelled(c Candidate) []string {
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
		case stays && slices.Contains(cluster.SystemOnly, v.Label),
			stays && slices.Contains(cluster.TalosLabels, v.Label) && v.Phase == "":
			out = append(out, fmt.Sprintf("%s carries a %s partition (%s) that Talos does not use now and might use then: delete that partition", v.Disk, v.Label, v.Device))
		}
		if slices.Contains(cluster.TalosLabels, v.Label) || strings.HasPrefix(v.Label, cluster.UserVolume) || strings.HasPrefix(v.Label, cluster.RawVolume) {
			seen[v.Label]++
			if seen[v.Label] == 2 {
				out = append(out, fmt.Sprintf("the label %s is there twice, on %s: relabel or delete what is not in use",
					v.Label, strings.Join(c.Machine.DisksWith(v.Label), " and on ")))
			}
		}
	}
	return out
}

// onSystemDisk says whether data of the node is lost with the system disk. Data that is not proven
// to be on another disk counts as on this one.
func onSystemDisk(c Candidate, l cluster.LocalData) bool {
	if l.Path == "" {
		return !c.Machine.PoolElsewhere(l.Format, l.Group) && !c.Machine.BareSystemDisk()
	}
	on := c.Machine.DisksOf(path.Clean("/" + l.Path))
	return len(on) == 0 || c.Machine.SystemDisk == "" || slices.Contains(on, c.Machine.SystemDisk)
}

// sealed lists encrypted volumes that could not be opened afterwards: a key locked to STATE is lost
// with the system disk, and a key sealed to a TPM needs the state of that TPM.
func sealed(c Candidate) []string {
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

// loss is data that is lost with the system disk.
type loss struct {
	name          string // what acceptLoss calls it
	what          string
	lift, command string // as of LocalData
}
