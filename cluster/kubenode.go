package cluster

import (
	"path"
	"slices"
	"strings"
)

// PauseMark is the annotation that keeps recast from taking a node out of service. Its value is the
// reason.
const PauseMark = "recast.dev/pause"

// Pause returns the reason in a Node's pause annotation; "" without one.
func Pause(annotations map[string]string) string {
	text, paused := annotations[PauseMark]
	why := strings.Join(strings.Fields(text), " ")
	if paused && why == "" {
		return "no reason given"
	}
	return why
}

// Unpause is the command that lets a paused node be taken out again.
func Unpause(node string) string {
	return "kubectl annotate node " + node + " " + PauseMark + "- lifts that"
}

// Begun says whether both marks are of the same upgrade in the same boot.
func (m Mark) Begun(now Mark) bool {
	return m.Strategy == now.Strategy && m.Build == now.Build && m.BootID == now.BootID
}

// Pools returns the members of the machine's pools, with its system disk as GoneSystemDisk: the
// name that it has once the machine does not answer.
func (m Machine) Pools() []PoolMember {
	out := slices.Clone(m.PoolMembers)
	for i := range out {
		out[i].Disks = slices.Clone(out[i].Disks)
		for j, disk := range out[i].Disks {
			if disk == m.SystemDisk {
				out[i].Disks[j] = GoneSystemDisk
			}
		}
	}
	return out
}

// HeldBy says whether the run has the node cordoned.
func (k KubeNode) HeldBy(run string) bool {
	return k.Unschedulable && k.Mark != nil && k.Mark.Run == run
}

// LocalData is data that is on one node only. Data that may be in several places has one entry for
// each, all with the same name.
type LocalData struct {
	Name string // what acceptLoss takes: "pv/pvc-1a2b", "hostpath/var/lib/app", "longhorn/var/lib/longhorn", "linstor/pool1"
	What string // for people: "PersistentVolume pvc-1a2b (claim default/db-0)"
	Path string // on the node; "" for a volume of LVM or ZFS, or if unknown

	Format string // of the pool that it is in: FormatLVM or FormatZFS; "" for a file or directory, or if unknown
	Group  string // name of that volume group or pool; "" if unknown
	Access string // ISCSI or NVMeoF: a volume on a server of these, which may let in machines by their names; not on a node
	Handle string // of a Proxmox volume, by its CSI driver: it is not bound to one node

	Lift    string // how to move it to other nodes, in words; "" if that is impossible
	Command string // arguments of kubectl that start the move; "" for none
}

// AttachedVolume is a volume that Kubernetes counts as attached to a node.
type AttachedVolume struct {
	Attachment string // the VolumeAttachment
	Volume     string // the PersistentVolume; "" for one that only its pod names
	Claim      string // "namespace/name"; "" if it has none
	Driver     string // that attaches and detaches it: "csi.proxmox.sinextra.dev"
	Trouble    string // what the driver reports; "" for nothing
	Handle     string // the driver's own name for it: "cluster-1/pve1/fast/vm-9999-pvc-0b5f"; "" if there is none
	User       string // the pod that uses it and that a drain leaves on the node: "DaemonSet pod csi/agent-x2b"; "" for none
}

// String names the volume for people.
func (v AttachedVolume) String() string {
	text, about := "VolumeAttachment "+v.Attachment, "driver "+v.Driver
	if v.Volume != "" {
		text = "PersistentVolume " + v.Volume
	}
	if v.Claim != "" {
		about = "claim " + v.Claim + ", " + about
	}
	text += " (" + about + ")"
	if v.Trouble != "" {
		text += " " + v.Trouble
	}
	return text
}

// IsOf says whether a VM's drive is the volume. Handles of Proxmox drivers end with the volume's
// name in Proxmox.
func (v AttachedVolume) IsOf(d Disk) bool {
	name := func(s string) string { return strings.TrimSuffix(strings.TrimSuffix(path.Base(s), ".qcow2"), ".raw") }
	_, volume, _ := strings.Cut(d.Volid, ":")
	return v.Handle != "" && name(v.Handle) == name(volume)
}

const (
	ControlPlane = "control-plane"
	Worker       = "worker"
)
