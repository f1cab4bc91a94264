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
		case l.accepted(c.AcceptLoss):
			continue
		case slices.ContainsFunc(c.unseen, func(o loss) bool { return o.name == l.name }):
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

// losses lists the data that only the system disk has, and the names in acceptLoss that match none of that data.
func losses(c Candidate) (lost []loss, unknown []string) {
	for _, v := range c.Machine.Volumes {
		if v.Disk != c.Machine.SystemDisk || v.ID == "" && slices.Contains(cluster.TalosLabels, v.Label) || slices.Contains(cluster.TalosLabels, v.ID) || strings.HasPrefix(v.Label, cluster.SwapVolume) {
			continue
		}
		names := v.LossNames()
		what := "volume " + names[0]
		if v.ID == "" && v.Label == "" {
			what = "partition " + v.Device
		}
		lost = append(lost, loss{name: names[0], also: names[1:], what: what})
	}
	for _, s := range c.Machine.VolumeStatuses {
		if s.Type == cluster.DirectoryVolume && strings.HasPrefix(s.ID, cluster.UserVolume) && slices.Contains(c.Machine.DisksWith("EPHEMERAL"), c.Machine.SystemDisk) {
			lost = append(lost, loss{name: s.ID, what: "volume " + s.ID + ", a directory on EPHEMERAL,"})
		}
	}
	for _, l := range slices.Concat(c.Found.Local, extensionData(c.Machine)) {
		listed := slices.ContainsFunc(lost, func(o loss) bool { return o.accepted([]string{l.Name}) })
		if !listed && onSystemDisk(c, l) {
			lost = append(lost, loss{name: l.Name, what: l.What, lift: l.Lift, command: l.Command})
		}
	}
	lost = append(lost, c.unseen...)
	args, _, _ := c.Machine.InstallArgs()
	for _, name := range c.AcceptLoss {
		if slices.ContainsFunc(args, func(arg string) bool { return name == kernelArg+cluster.ShownArg(arg) }) {
			continue
		}
		if !slices.ContainsFunc(lost, func(l loss) bool { return l.accepted([]string{name}) }) {
			unknown = append(unknown, name)
		}
	}
	return lost, unknown
}

// mislabelled lists partitions on persistent disks that Talos would treat as its own once the
// system disk is blank: it finds its volumes by their labels on any disk.
func mislabelled(c Candidate) []string {
	if c.Machine.SystemDisk == "" {
		return nil // the system disk is not proven: refused for that already
	}
	var out []string
	seen := map[string]int{}
	for _, v := range c.Machine.Volumes {
		stays := v.Disk != c.Machine.SystemDisk
		switch {
		case stays && v.Label == "META":
			out = append(out, fmt.Sprintf("%s carries a META partition (%s): the boot ISO would take Talos for installed and halt: %s", v.Disk, v.Device, putRight(c.Machine, v)))
		case stays && slices.Contains(cluster.SystemOnly, v.Label),
			stays && slices.Contains(cluster.TalosLabels, v.Label) && v.Phase == "" && !c.leavesAlone(v.Label):
			out = append(out, fmt.Sprintf("%s carries a %s partition (%s) that Talos does not use now and might use then: %s", v.Disk, v.Label, v.Device, putRight(c.Machine, v)))
		}
		managed := slices.Contains(cluster.TalosLabels, v.Label) || strings.HasPrefix(v.Label, cluster.UserVolume) || strings.HasPrefix(v.Label, cluster.RawVolume)
		if seen[v.Label]++; managed && seen[v.Label] == 2 {
			out = append(out, fmt.Sprintf("the label %s is there twice, on %s: %s", v.Label, strings.Join(c.Machine.DisksWith(v.Label), " and on "), tellApart(c.Machine, v.Label)))
		}
	}
	return out
}

// leavesAlone says whether the node's configuration makes the system volume a directory on EPHEMERAL: Talos then looks
// for no partition with its label (block.VolumeConfigController). A partition stays there if its document was dropped.
func (c Candidate) leavesAlone(label string) bool {
	s, shown := c.Machine.VolumeStatus(label)
	directory := shown && s.Type == cluster.DirectoryVolume
	if file := c.Found.File; file != nil {
		directory = directory && !slices.ContainsFunc(file.Volumes, func(v cluster.ConfigVolume) bool { return v.ID == label && v.Type != cluster.DirectoryVolume })
	}
	return directory && slices.Contains(cluster.OnPartition, label)
}

// putRight says what to do about a partition that Talos might take for its own. The partition is to be deleted only
// if nothing uses it, and nothing of worth can be on it.
func putRight(m cluster.Machine, v cluster.Volume) string {
	same, copied := cluster.Find(m.Volumes, func(o cluster.Volume) bool {
		return o.Disk != v.Disk && v.PartitionUUID != "" && o.SameContent(v)
	})
	switch {
	case copied:
		return fmt.Sprintf("it is the same as %s, so one disk is a copy of the other: find out which, and take the copy out of the VM while that is off", same.Device)
	case v.Phase != "" || v.Mount != "" || v.Format == cluster.FormatLVM || v.Format == cluster.FormatZFS:
		return "something uses it: find out what before you change it"
	case !slices.Contains(cluster.SystemOnly, v.Label):
		return "give that partition another label, which keeps what is on it"
	}
	return "delete that partition"
}

// tellApart says which of several partitions with one label is to get another label.
func tellApart(m cluster.Machine, label string) string {
	used := cluster.Where(m.Volumes, func(v cluster.Volume) bool { return v.Label == label && v.Phase == "ready" })
	if len(used) != 1 {
		return "find out which one is in use, and give the other one another label"
	}
	return fmt.Sprintf("Talos uses the one on %s: give the other one another label", used[0].Disk)
}

// onSystemDisk says whether data of the node is lost with the system disk. Data that is not proven to be on another
// disk counts as on the system disk.
func onSystemDisk(c Candidate, l cluster.LocalData) bool {
	if l.Path == "" {
		return !c.Machine.PoolElsewhere(l.Format, l.Group) && !c.Machine.BareSystemDisk()
	}
	at := path.Clean("/" + l.Path)
	if c.Machine.OnHost(at) {
		return false
	}
	on := c.Machine.DisksOf(at)
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
	name          string   // what acceptLoss calls it
	also          []string // other names for it
	what          string
	lift, command string // as in LocalData
}

// accepted says whether one of names names the loss.
func (l loss) accepted(names []string) bool {
	return slices.Contains(names, l.name) || slices.ContainsFunc(l.also, func(name string) bool { return slices.Contains(names, name) })
}

// extensionState is where official extensions keep what nobody can make again: the node's identity in a network of
// their own (each FILE.yaml in siderolabs/extensions, network/NAME/NAME.yaml). The other directories below /var
// that extensions write to, of soci-snapshotter, stargz-snapshotter, nvidia-fabricmanager, cachefilesd,
// iscsi-tools, nfs-utils and zfs, have caches, logs, and what the node's mounts make again.
var extensionState = map[string]struct{ path, what string }{
	"tailscale": {"/var/lib/tailscale", "its node key and login"},
	"zerotier":  {"/var/lib/zerotier-one", "its identity"},
	"netbird":   {"/var/lib/netbird", "its key and login"},
}

// extensionData returns what the running system's extensions keep below /var.
func extensionData(m cluster.Machine) (data []cluster.LocalData) {
	for _, e := range m.Extensions {
		if state, keeps := extensionState[e.Name]; keeps {
			data = append(data, cluster.LocalData{Name: "extension/" + e.Name, What: "state of extension " + e.Name + " (" + state.what + ", " + state.path + ")", Path: state.path})
		}
	}
	return data
}
