package parking

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/format"
	"github.com/recast-sh/recast/internal/words"
)

// Memory is what can no longer be read once the VM is deleted. It is in the journal before anything
// is taken down and, without Metadata, in the record.
type Memory struct {
	VM         cluster.VM // as it was; its Config is what a new VM gets
	SystemKey  string
	BootID     string                   // of the boot before the exchange
	Volumes    []cluster.Volume         // partitions and filesystems on persistent disks
	Persistent []PersistentDisk         `json:",omitempty"` // the drives of those disks
	Pools      []cluster.PoolMember     `json:",omitzero"`  // of LVM and ZFS; on the system disk if on no other
	Extensions []cluster.ExtensionEntry `json:",omitempty"` // of the system before
	Stuck      []cluster.VolumeStatus   `json:",omitempty"` // volumes of its configuration that Talos could not use
	DiskSerial string                   // of the new system disk to come
	HA         *cluster.HAResource      // nil: not managed
	Firewall   string                   `json:",omitempty"` // see Replace.Firewall

	// Metadata of the Kubernetes Node, in case someone deletes the Node meanwhile. It is too large for the record:
	// without the journal, recast reads the Node itself.
	Metadata cluster.NodeMetadata
	NodeUID  string // of that Node

	ControlPlane bool
	EtcdKept     bool   // its data is on a persistent disk: the member must not leave
	EtcdID       uint64 // of the member; 0 if there was none
	EtcdMembers  int    // including this one
	Bootstraps   bool   `json:",omitempty"` // etcd begins on this node

	// Kubernetes is what the node ran. The restored node runs the same, whatever a configuration from a file names:
	// a roll never changes it.
	Kubernetes cluster.KubernetesImages `json:",omitzero"`

	Old KeptDisk // entry of the old system disk, without its place

	// Blank is the setting of the VM that differs until the node is healthy, so that its blank
	// machine has the node's address; nil: none.
	Blank *cluster.BlankSetting `json:",omitempty"`

	HostArch string `json:",omitempty"` // see Ties.HostArch

	ConfigSum string `json:",omitempty"` // see Record.Config
}

// ChangedSettings lists the settings of a VM, as it was, that have other values until the end of its exchange.
// Finish, put-back and the lines for a person's hand restore them.
func ChangedSettings(vm cluster.VM, blank *cluster.BlankSetting) []string {
	keys := []string{"onboot", "protection"}
	if blank != nil {
		keys = append(keys, blank.Key)
	}
	if vm.Config["tags"] != "" {
		keys = append(keys, "tags") // a run sets the tags of a VM that it created only once its node serves
	}
	return keys
}

// maxMemory bounds an unpacked memory: it is read from a description that anyone may have edited.
const maxMemory = 1 << 20

// Pack makes a memory small enough for a VM's description.
func (m Memory) Pack() (string, error) {
	m.Metadata, m.ConfigSum = cluster.NodeMetadata{}, "" // the sum is beside it in the record
	b, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("pack what is remembered of %s: %w", m.VM, err)
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	if _, err := w.Write(b); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(packed.Bytes()), nil
}

func UnpackMemory(packed string) (m Memory, err error) {
	b, err := base64.RawURLEncoding.DecodeString(packed)
	if err != nil {
		return m, err
	}
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return m, err
	}
	if b, err = io.ReadAll(io.LimitReader(r, maxMemory)); err != nil {
		return m, err
	}
	return m, format.Decode(b, &m)
}

func (r Record) ReadMemory(park cluster.VM) (Memory, error) {
	m, err := UnpackMemory(r.Memory)
	if err != nil {
		return m, fault.WithHint(fault.ParkedHalf.Refusedf("node %s: what %s remembers of VM %d can't be read: %w", r.Node, park, r.VMID, err),
			"its description was edited; recast can continue where the journal of run %s is", r.Run)
	}
	return m, nil
}

// Disks returns the VM's drives as remembered, without CD and cloud-init drives.
func (m Memory) Disks() ([]cluster.Disk, error) {
	all, err := m.VM.Disks()
	return slices.DeleteFunc(all, func(d cluster.Disk) bool { return d.CDROM }), err
}

// VMWith returns the VM with those options for its system disk.
func (m Memory) VMWith(options []string) cluster.VM {
	vm := m.VM
	vm.Config = maps.Clone(vm.Config)
	d, err := cluster.ParseDisk(m.SystemKey, vm.Config[m.SystemKey])
	if err == nil {
		d.Options = options
		vm.Config[m.SystemKey] = d.Value()
	}
	return vm
}

// BlankVM returns the VM with the new system disk, identified only by its names and address.
func (m Memory) BlankVM() cluster.VM {
	return m.VMWith(cluster.Disk{Key: m.SystemKey}.Named(m.DiskSerial))
}

// LostMetadata reports whether a Node is not the remembered one.
func (m Memory) LostMetadata(now cluster.KubeNode) bool { return m.NodeUID != now.UID }

// BlankDisks returns the machine's disks that match the new system disk: normally one.
func (mem Memory) BlankDisks(m cluster.Machine) []cluster.MachineDisk {
	vm := mem.BlankVM()
	drives, err := vm.Bootable()
	if err != nil {
		return nil
	}
	return m.MachineDisks(vm, drives, mem.SystemKey)
}

// WrongBlank says which of a machine's disks are not as they must be before its configuration is applied: one disk
// is the new system disk, and every persistent volume is in its place. configured says that the machine may already
// have received a configuration; prepared, that the disk was made from a disk image, and is not blank.
func (mem Memory) WrongBlank(m cluster.Machine, configured, prepared bool) []error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fault.Refusedf(format, args...)) }
	switch ours := mem.BlankDisks(m); {
	case len(ours) != 1:
		refuse("%d disks of the machine are the %s system disk %s with serial %s, expected one", len(ours), map[bool]string{true: "prepared", false: "blank"}[prepared], mem.SystemKey, mem.DiskSerial)
	case prepared:
		if strange := strangeOn(m, ours[0].Device, configured); strange != "" {
			refuse("the new system disk %s %s", ours[0].Device, strange)
		}
	case !ours[0].Blank:
		refuse("the new system disk %s is not blank", ours[0].Device)
	}
	for _, want := range mem.Volumes {
		if _, there := m.Find(want); !there && m.Shows(want.Format) {
			refuse("the persistent volume %s is missing", want)
		}
	}
	problems = append(problems, mem.Displaced(m, configured)...)
	seen := map[string]string{}
	for _, v := range m.Volumes {
		if !slices.Contains(cluster.TalosLabels, v.Label) {
			continue
		}
		if other, twice := seen[v.Label]; twice {
			refuse("the label %s is on %s and on %s", v.Label, other, v.Device)
		}
		seen[v.Label] = v.Device
	}
	return problems
}

// imagePartitions are the partitions of a Talos disk image; bootPartitions are those that its first boot with a
// configuration adds.
var (
	imagePartitions = []string{"EFI", "BIOS", "BOOT", "META"}
	bootPartitions  = []string{"STATE", "EPHEMERAL"}
)

// strangeOn says how a prepared system disk differs from the disk image; "": it does not. The machine has to run
// from the disk, and a disk with META and without STATE was never used.
func strangeOn(m cluster.Machine, device string, configured bool) string {
	if m.FromISO || m.SystemDisk != device {
		return fmt.Sprintf("is not the one that the machine booted, which is %s", words.OrNone(m.SystemDisk))
	}
	allowed := imagePartitions
	if configured {
		allowed = slices.Concat(imagePartitions, bootPartitions)
	}
	has := map[string]bool{}
	for _, v := range m.Volumes {
		switch {
		case v.Disk != device:
		case !slices.Contains(allowed, v.Label):
			return fmt.Sprintf("has %s, which is not of the disk image: it was used before", v)
		default:
			has[v.Label] = true
		}
	}
	if !has["EFI"] || !has["META"] {
		return "lacks partitions of the disk image: it was not imported whole"
	}
	return ""
}

// LacksVolume names the first persistent volume that a machine lacks; "" if it has all of them. A volume that
// acceptLoss names may be no volume of Talos any more.
func (mem Memory) LacksVolume(m cluster.Machine, acceptLoss []string) string {
	for _, want := range mem.Volumes {
		have, there := m.Find(want)
		switch {
		case !there && !m.Shows(want.Format):
		case !there:
			return fmt.Sprintf("persistent volume %s (partition UUID %s) is missing", words.OrNone(want.Label), want.PartitionUUID)
		case want.Phase != "ready" || have.Phase == "" && slices.ContainsFunc(want.LossNames(), func(name string) bool { return slices.Contains(acceptLoss, name) }):
		case have.Phase != "ready":
			return fmt.Sprintf("persistent volume %s is %s", want.LossNames()[0], words.OrNone(have.Phase))
		case want.ID != "" && have.ID != want.ID:
			return fmt.Sprintf("persistent volume %s is %s now", want.ID, words.OrNone(have.ID))
		}
	}
	return ""
}

// LacksPlace says which persistent volume is on another disk than before. It skips a disk that can't be identified
// because pods have disks of the same size: checkBlank has already found a moved disk in its place, and a disk that
// was not moved is still in its place.
func (mem Memory) LacksPlace(m cluster.Machine, vm cluster.VM) string {
	drives, err := vm.Bootable()
	if err != nil {
		return err.Error()
	}
	for _, was := range mem.Persistent {
		if on := m.MachineDisks(vm, drives, was.Key); len(on) == 1 {
			if elsewhere := mem.Elsewhere(m, was, on[0]); elsewhere != "" {
				return elsewhere
			}
		}
	}
	return ""
}
