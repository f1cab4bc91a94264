package cluster

import (
	"path"
	"strings"
)

func OptionString(d Disk) string {
	d.Volid = ""
	if v := d.Value(); v != "" {
		return v[1:]
	}
	return ""
}

func SplitOptions(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// AttachedVolume is a volume that Kubernetes counts as attached to a node.
type AttachedVolume struct {
	Attachment string // the VolumeAttachment
	Volume     string // the PersistentVolume; "" for one that only its pod names
	Claim      string // "namespace/name"; "" if it has none
	Driver     string // that attaches and detaches it: "csi.proxmox.sinextra.dev"
	Trouble    string // what that reports; "" for nothing
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

// IsOf says whether a drive of a VM is the volume. Drivers of Proxmox end their
// handles with the volume's name there.
func (v AttachedVolume) IsOf(d Disk) bool {
	name := func(s string) string { return strings.TrimSuffix(strings.TrimSuffix(path.Base(s), ".qcow2"), ".raw") }
	_, volume, _ := strings.Cut(d.Volid, ":")
	return v.Handle != "" && name(v.Handle) == name(volume)
}

// OtherMedia are the VM's media that are not there for the blank boot, by drive: any ISO
// may hold cloud-init data, which would configure the machine before recast does (Talos,
// platform/nocloud/metadata.go, configFromCD). What is in the drive that the boot ISO
// takes is among them no more than boot ISOs are.
func (vm VM) OtherMedia() (map[string]Disk, error) {
	disks, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	cd, out := CDKey(vm.Config, disks), map[string]Disk{}
	for _, d := range disks {
		if _, ours := BootISO(d); d.CDROM && !d.CloudInit() && !ours && d.Key != cd && strings.Contains(d.Volid, ":") {
			out[d.Key] = WithoutOption(d, "size")
		}
	}
	return out, nil
}
