package cluster

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

const (
	formatBtrfs = "btrfs"
	formatMD    = "linux_raid_member" // a disk or partition of a software RAID
)

// ShownSince is the first release of Talos that detects a format, with go-blockdevice 2.0.30 and 2.0.32
// (blkid/internal/chain). Older ones show nothing there, or the content of a RAID, whose superblock may be at the end.
var ShownSince = map[string]Version{formatBtrfs: {1, 13, 5, ""}, formatMD: {1, 14, 0, ""}}

// Shows: the machine's Talos detects the format. What it does not detect can't be missed; Proxmox' drive was compared.
func (m RunningSystem) Shows(format string) bool {
	since, late := ShownSince[format]
	if !late {
		return true
	}
	v, err := ParseVersion(m.TalosVersion)
	return err != nil || v.Compare(since) >= 0
}

// Find returns the machine's volume that matches a recorded one.
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

// SameContent compares two volumes by what is on them, not by where they are plugged in.
func (v Volume) SameContent(o Volume) bool {
	return v.Label == o.Label && strings.EqualFold(v.PartitionUUID, o.PartitionUUID) && strings.EqualFold(v.FilesystemUUID, o.FilesystemUUID) &&
		(v.FilesystemLabel == "" || v.FilesystemLabel == o.FilesystemLabel) && (v.Format == "" || o.Format == "" || v.Format == o.Format)
}

// SamePartition is SameContent where only one of two releases of Talos detects the format.
func (m Machine) SamePartition(want, have Volume) bool {
	if want.PartitionUUID == "" || want.Label != have.Label || !strings.EqualFold(want.PartitionUUID, have.PartitionUUID) {
		return false
	}
	unknown := want.Format == "" && want.FilesystemUUID == ""
	return !m.Shows(want.Format) ||
		have.Format == formatBtrfs && unknown ||
		have.Format == formatMD && (unknown || want.Format != "" && want.Format != formatMD)
}

// NameThem says how to make the machine show which of its disks those drives are.
func NameThem(vm VM, drives []Disk) string {
	return fmt.Sprintf("%s, then shut VM %d down and start it (a reboot from inside is not enough), so that Talos shows the name", NameLines(vm, drives), vm.ID)
}

// NameLines returns the commands that name these drives. The last of several needs none once the others have one.
func NameLines(vm VM, drives []Disk) string {
	lines := Each(drives[:max(1, len(drives)-1)], func(d Disk) string { return d.NameLine(vm, true) })
	return strings.Join(lines, " && ")
}

// NameLine gives the drive a unique serial; if shown, with a WWN: Talos shows no serial of a SCSI disk.
func (d Disk) NameLine(vm VM, shown bool) string {
	serial := fmt.Sprintf("%d-%s", vm.ID, d.Key)
	options := append(WithoutOption(d, "serial").Options, "serial="+serial)
	if shown && !strings.HasPrefix(d.Key, "virtio") {
		options = append(WithoutOption(Disk{Options: options}, "wwn").Options, "wwn="+WWN(serial))
	}
	return fmt.Sprintf("qm set %d --%s %s", vm.ID, d.Key, words.Quote(Disk{Volid: d.Volid, Options: options}.Value()))
}

// Identity identifies the content of one of the machine's disks by labels and UUIDs; "" if the disk has none.
func (m Machine) Identity(device string) string {
	names := Each(Where(m.Volumes, func(v Volume) bool { return v.Disk == device }), func(v Volume) string {
		return strings.ToLower(strings.Join([]string{v.Label, v.PartitionUUID, v.FilesystemUUID, v.FilesystemLabel}, "/"))
	})
	slices.Sort(names)
	return strings.Trim(strings.Join(names, " "), " /")
}

func (v Volume) String() string {
	return fmt.Sprintf("%s with partition UUID %s, filesystem UUID %s", cmp.Or(v.Label, v.FilesystemLabel, "none"), words.OrNone(v.PartitionUUID), words.OrNone(v.FilesystemUUID))
}

// TalosLabels are the labels of Talos' own partitions (machinery, constants; ETCD and the three after since 1.14).
var TalosLabels = []string{"EFI", "BIOS", "BOOT", "META", "STATE", "EPHEMERAL", "IMAGECACHE", "ETCD", "CRI", "KUBELET", "LOG"}

// SystemOnly are the labels of partitions that Talos creates on the system disk only.
var SystemOnly = []string{"EFI", "BIOS", "BOOT", "META", "STATE"}

const (
	UserVolume = "u-" // prefix of a user volume's label
	RawVolume  = "r-" // prefix of a raw volume's label
	SwapVolume = "s-" // prefix of a swap volume's label; a swap volume holds no data
	// ExistingVolume is the prefix of an existing volume's ID.
	ExistingVolume = "e-"
	userMounts     = "/var/mnt" // where user volumes are mounted

	ephemeralMount = "/var" // where EPHEMERAL is
)

// OnPartition are directories on EPHEMERAL, unless (since Talos 1.14) a VolumeConfig has provisioning.
var OnPartition = []string{"ETCD", "CRI", "KUBELET", "LOG"}

// Document returns kind and name of what defines a partition with the label (machinery, config/types/block); "": none.
func (v Volume) Document() string {
	if slices.Contains(OnPartition, v.Label) {
		return "VolumeConfig " + v.Label
	}
	for prefix, kind := range map[string]string{UserVolume: "UserVolumeConfig", RawVolume: "RawVolumeConfig", SwapVolume: "SwapVolumeConfig"} {
		if name, found := strings.CutPrefix(v.Label, prefix); found {
			return kind + " " + name
		}
	}
	return ""
}

// OnHost says whether a path of the node is in a directory that the VM's host shares with it.
func (m Machine) OnHost(p string) bool {
	return slices.ContainsFunc(m.VolumeStatuses, func(s VolumeStatus) bool {
		return s.Type == ExternalVolume && s.Ready() && s.Mount != "" && below(p, s.Mount)
	})
}

// DisksOf lists the disks that a path of the node may be on: those of the volume with the longest mount point above it,
// else those with EPHEMERAL. Where a partition has the name of a user volume that Talos does not use now, both count.
func (m Machine) DisksOf(p string) []string {
	mount := ""
	for _, v := range m.Volumes {
		if len(v.Mount) > len(mount) && below(p, v.Mount) {
			mount = v.Mount
		}
	}
	if rest, user := strings.CutPrefix(p, userMounts+"/"); user && !below(mount, userMounts) {
		name, _, _ := strings.Cut(rest, "/")
		of, _ := m.VolumeStatus(UserVolume + name)
		on := m.DisksWith(UserVolume + name)
		switch {
		case len(on) == 0:
		case len(m.VolumeStatuses) == 0 || of.Type == PartitionVolume && of.Location != "":
			return on
		case mount == "" || mount == ephemeralMount: // pods write to EPHEMERAL below the path where it was
			return append(on, m.DisksWith("EPHEMERAL")...)
		}
	}
	if mount == "" || mount == ephemeralMount {
		return m.DisksWith("EPHEMERAL")
	}
	return m.disksWhere(func(v Volume) bool { return v.Mount == mount })
}

func below(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// PoolElsewhere says whether it is proven that a volume group or pool has nothing on the system disk: its members are
// found, and all of them are known to be on other drives. A member of an unknown group counts for every group.
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

// BareSystemDisk: the system disk has only what Talos requires. A machine that does not answer: false.
func (m Machine) BareSystemDisk() bool {
	more := slices.ContainsFunc(m.Volumes, func(v Volume) bool {
		return v.Disk == m.SystemDisk && !slices.Contains(SystemOnly, v.Label)
	})
	return !more && !m.Remembered && m.SystemDisk != "" && len(m.DisksWith("EPHEMERAL")) > 0
}

// DiskUse says whether the machine uses one of its disks.
type DiskUse int

// The uses. A disk that shows nothing, or something that Talos does not manage, may be used by anything.
const (
	MayBeUsed DiskUse = iota
	Unused            // Talos has each of its volumes at another device
	Used
)

func (m Machine) UseOf(device string) DiskUse {
	out, seen := Unused, false
	for _, v := range m.Volumes {
		if v.Disk != device {
			continue
		}
		seen = true
		switch {
		case v.Phase == "ready":
			return Used
		case v.Phase != "" || !m.UsesTwin(v):
			out = MayBeUsed
		}
	}
	if !seen {
		return MayBeUsed
	}
	return out
}

// UsesTwin: the same volume is used elsewhere, and only Talos uses v. A raw volume's path may mean either.
func (m Machine) UsesTwin(v Volume) bool {
	return slices.ContainsFunc(m.Volumes, func(o Volume) bool {
		managed := slices.Contains(TalosLabels, o.Label) || strings.HasPrefix(o.Label, UserVolume) && o.Mount != ""
		return managed && o.Disk != v.Disk && o.SameContent(v) && (o.Phase == "ready" || slices.Contains([]string{"EFI", "BIOS", "BOOT"}, o.Label))
	})
}

// VolumeStatus is a volume of a machine's configuration as Talos reports it: a partition, a whole disk, a directory
// on EPHEMERAL, or a directory that the VM's host shares with the machine.
type VolumeStatus struct {
	ID       string // "EPHEMERAL", "u-data", "r-data", "s-swap", "e-backup", "x-share", "/dev/sdb-1" of machine.disks
	Type     VolumeType
	Phase    string // "ready", "waiting", "missing", "failed", …
	Error    string // Talos' own, while it failed or waits
	Location string // "/dev/sdb1"; of an external volume its source; "" for none, or a directory
	Disk     string // the drive that it is on: "sdb"; "" for none, or unknown
	Mount    string // where Talos mounts it: see Volume.Mount
	Slot     *int   // of the key that opened it; nil: it is not encrypted, or Talos does not say
}

// VolumeType says what a volume is (machinery, resources/block, VolumeType).
type VolumeType string

// The types of volumes that hold data.
const (
	PartitionVolume VolumeType = "partition"
	DiskVolume      VolumeType = "disk"
	DirectoryVolume VolumeType = "directory"
	ExternalVolume  VolumeType = "external"
)

func (s VolumeStatus) Ready() bool { return s.Phase == "ready" }

// Exists: the volume is there with its data, even if Talos can't use it now, as no key opens it.
func (s VolumeStatus) Exists() bool { return s.Ready() || s.Location != "" }

func (m Machine) VolumeStatus(id string) (VolumeStatus, bool) {
	return Find(m.VolumeStatuses, func(s VolumeStatus) bool { return s.ID == id })
}

// HasVolume: the volume was made. Talos has it somewhere, or would find it by its partition's label.
func (m Machine) HasVolume(id string) bool {
	s, there := m.VolumeStatus(id)
	return there && s.Location != "" || len(m.DisksWith(id)) > 0
}

// EtcdVolume says what holds etcd's data, by the configuration, not by a label, unless no volumes are shown.
func (m Machine) EtcdVolume() VolumeType {
	s, there := m.VolumeStatus("ETCD")
	if there && s.Type == PartitionVolume || len(m.VolumeStatuses) == 0 && len(m.DisksWith("ETCD")) > 0 {
		return PartitionVolume
	}
	return DirectoryVolume
}

// NamesOf returns the names by which acceptLoss can name a volume: its ID, and those of its partition.
func (m Machine) NamesOf(s VolumeStatus) []string {
	names := []string{s.ID}
	for _, v := range m.Volumes {
		if v.ID == s.ID {
			names = append(names, v.LossNames()...)
		}
	}
	return names
}

// LossNames are the names for acceptLoss: a volume's ID, its partition's label, and without a label, its device.
func (v Volume) LossNames() []string {
	names := slices.DeleteFunc([]string{v.ID, v.Label}, func(name string) bool { return name == "" })
	if v.Label == "" {
		names = append(names, v.Device)
	}
	return slices.Compact(names)
}

// Stuck: Talos can't make or find the volume, and why. "missing" is of existing volumes, which it never makes.
func (s VolumeStatus) Stuck() string {
	if s.Phase != "failed" && s.Phase != "waiting" && !(s.Phase == "missing" && strings.HasPrefix(s.ID, ExistingVolume)) {
		return ""
	}
	return strings.TrimSuffix("its volume "+s.ID+" is "+s.Phase+": "+s.Error, ": ")
}

func (m Machine) Stuck() []VolumeStatus {
	return slices.DeleteFunc(slices.Clone(m.VolumeStatuses), func(s VolumeStatus) bool { return s.Stuck() == "" })
}

// StuckVolumes says in words which volumes are stuck, without those that were stuck in the same way before.
func (m Machine) StuckVolumes(before []VolumeStatus) (out []string) {
	for _, s := range m.VolumeStatuses {
		why := s.Stuck()
		if why != "" && !slices.ContainsFunc(before, func(b VolumeStatus) bool { return b.ID == s.ID && b.Stuck() == why }) {
			out = append(out, why)
		}
	}
	return out
}

// CSI: a storage driver attached the disk for a pod, with which it comes and goes. A PersistentVolume proves it.
func (d Disk) CSI() bool { return d.Pod }

// csiVolume matches the unique names of sergelogvinov/proxmox-csi-plugin, vm-9999-pvc-UUID (pkg/csi/controller.go).
var csiVolume = regexp.MustCompile(`(?:^|/)vm-\d+-pvc-[^/]+$`)

// LikeCSI says whether the name of the disk has the form of that driver's names.
func (d Disk) LikeCSI() bool {
	_, name, _ := strings.Cut(d.Volid, ":")
	return csiVolume.MatchString(strings.TrimSuffix(name, path.Ext(name)))
}

// PodVolumes returns the volumes in the VM's drives that one of these handles means: REGION/ZONE/STORAGE/VOLUME. ZONE
// is its host or "", and for the driver's own names may be where it was made (pkg/utils/volume).
func (vm VM) PodVolumes(handles []string) (out []string) {
	if len(handles) == 0 {
		return nil
	}
	for key, value := range vm.Config {
		d, err := ParseDisk(key, value)
		if err != nil || d.CDROM || d.OfHost() {
			continue
		}
		means := func(handle string) bool {
			parts := strings.SplitN(handle, "/", 4)
			return len(parts) == 4 && parts[2]+":"+parts[3] == d.Volid && (parts[1] == "" || parts[1] == vm.Host || d.LikeCSI())
		}
		if slices.ContainsFunc(handles, means) {
			out = append(out, d.Volid)
		}
	}
	slices.Sort(out)
	return out
}

// Doubtful says whether a drive of the VM may be a pod's: its volume's name has another VMID.
func (vm VM) Doubtful(d Disk) bool { return !d.CDROM && !d.OfHost() && !d.Pod && d.Owner != vm.ID }

// KnowPods reads the volumes of pods if a drive of the VM may be a pod's, and adds those in the VM's drives to Pods.
func (vm *VM) KnowPods(ctx context.Context, handles func(context.Context) ([]string, error)) error {
	disks, err := vm.Disks()
	if err != nil || !slices.ContainsFunc(disks, vm.Doubtful) {
		return err
	}
	all, err := handles(ctx)
	if err != nil {
		return fmt.Errorf("see which disks of %s are pods': %w", vm, err)
	}
	for _, volid := range vm.PodVolumes(all) {
		if !slices.Contains(vm.Pods, volid) {
			vm.Pods = append(slices.Clone(vm.Pods), volid)
		}
	}
	return nil
}

// DropCSI removes the disks of pods: they leave with the drain, and the new VM gets others.
func (vm VM) DropCSI() {
	maps.DeleteFunc(vm.Config, func(key, value string) bool {
		d, err := ParseDisk(key, value)
		return err == nil && slices.Contains(vm.Pods, d.Volid)
	})
}

// SameButPods: the VM is unchanged but for disks of pods, which it gets when another node is drained.
func (vm VM) SameButPods(ctx context.Context, now VM, handles func(context.Context) ([]string, error)) (bool, error) {
	now.Pods = vm.Pods
	if err := now.KnowPods(ctx, handles); err != nil {
		return false, err
	}
	before, after := maps.Clone(vm.Config), maps.Clone(now.Config)
	VM{Config: before, Pods: vm.Pods}.DropCSI()
	VM{Config: after, Pods: now.Pods}.DropCSI()
	return maps.Equal(before, after) && slices.Equal(vm.Pending, now.Pending), nil
}

// Unclaimed is about a disk with a pod's name and no PersistentVolume. While the VM is off, no pod uses it.
func (d Disk) Unclaimed(vm VM) Obstacle {
	line := fmt.Sprintf("qm shutdown %d && qm set %[1]d --delete %s && qm start %[1]d", vm.ID, d.Key)
	return Obstacle{Command: line, Text: fmt.Sprintf("%s (%s) is named as a pod's volume, but no PersistentVolume that Kubernetes tells of has it, so no drain takes it away: "+
		"have Kubernetes answer, or make its PersistentVolume again; or, if it is not needed here, take it out of VM %d, which keeps the volume, after kubectl drain: %s", d.Key, d.Volid, vm.ID, line)}
}

// Protocols by which machines use volumes of a server on the network.
const (
	ISCSI  = "iSCSI"
	NVMeoF = "NVMe-oF"
)

// ServedUser is a pod with a volume that machines reach by one of the protocols.
type ServedUser struct {
	Pod     string // "default/db-0"
	Node    string // "": it is not scheduled
	Volume  string // for people: "PersistentVolume pvc-1a2b"
	Access  string // ISCSI or NVMeoF
	Runs    bool   // it has its volumes: a container was started
	Trouble string // what its CSI driver reports; "" for nothing
}

func InitiatorFile(protocol string) string {
	return map[string]string{ISCSI: "/etc/iscsi/initiatorname.iscsi", NVMeoF: "/etc/nvme/hostnqn"}[protocol]
}

// InitiatorName returns the name by which a server of that protocol knows a machine of Talos; "" if it is not known. It
// follows from the machine-id, and that from STATE (iqn.go, nqn.go: its UUID is the first 16 characters, as bytes).
func InitiatorName(protocol, machineID string) string {
	if len(machineID) < 16 {
		return ""
	}
	if protocol == ISCSI {
		return "iqn.2017-11.dev.talos:" + machineID
	}
	id := hex.EncodeToString([]byte(machineID[:16]))
	return fmt.Sprintf("nqn.2017-11.dev.talos:uuid:%s-%s-%s-%s-%s", id[:8], id[8:12], id[12:16], id[16:20], id[20:])
}
