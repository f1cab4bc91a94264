package cluster

import (
	"slices"
	"strings"
)

// VolumeStatus is a volume of a machine's configuration as Talos reports it: a partition, a whole disk, a directory on
// EPHEMERAL, or what the VM's host shares with it.
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

// Ready says whether Talos uses the volume.
func (s VolumeStatus) Ready() bool { return s.Phase == "ready" }

// Exists says whether there is a volume with data, even if Talos can't use it now, as one that no key opens.
func (s VolumeStatus) Exists() bool { return s.Ready() || s.Location != "" }

// VolumeStatus returns the volume of the machine's configuration with that ID.
func (m Machine) VolumeStatus(id string) (VolumeStatus, bool) {
	for _, s := range m.VolumeStatuses {
		if s.ID == id {
			return s, true
		}
	}
	return VolumeStatus{}, false
}

// HasVolume says whether the volume of that ID has been made: Talos has it somewhere, or would find it by the label of
// its partition.
func (m Machine) HasVolume(id string) bool {
	s, there := m.VolumeStatus(id)
	return there && s.Location != "" || len(m.DisksWith(id)) > 0
}

// EtcdVolume says what holds etcd's data: its own partition, or a directory on EPHEMERAL. Only the machine's
// configuration decides that, not the label of a partition (see TalosLabels). Of a machine that shows no volumes of
// its configuration, a partition of that name counts.
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

// LossNames are the names of a volume by which acceptLoss can name it: its ID, the label of its partition, and where
// it has none, its device.
func (v Volume) LossNames() []string {
	names := slices.DeleteFunc([]string{v.ID, v.Label}, func(name string) bool { return name == "" })
	if v.Label == "" {
		names = append(names, v.Device)
	}
	return slices.Compact(names)
}

// Stuck says in words that Talos can't make or find the volume, and why; "": it can, or has not tried. Of an existing
// volume that it does not find Talos says "missing" (block/internal/volumes/locate.go, provisionNewVolume): it makes none.
func (s VolumeStatus) Stuck() string {
	if s.Phase != "failed" && s.Phase != "waiting" && !(s.Phase == "missing" && strings.HasPrefix(s.ID, ExistingVolume)) {
		return ""
	}
	return strings.TrimSuffix("its volume "+s.ID+" is "+s.Phase+": "+s.Error, ": ")
}

// Stuck are the volumes of the machine that are stuck.
func (m Machine) Stuck() []VolumeStatus {
	return slices.DeleteFunc(slices.Clone(m.VolumeStatuses), func(s VolumeStatus) bool { return s.Stuck() == "" })
}

// StuckVolumes are the volumes of the machine that are stuck, but not in the same way those of before.
func (m Machine) StuckVolumes(before []VolumeStatus) (out []string) {
	for _, s := range m.VolumeStatuses {
		why := s.Stuck()
		if why != "" && !slices.ContainsFunc(before, func(b VolumeStatus) bool { return b.ID == s.ID && b.Stuck() == why }) {
			out = append(out, why)
		}
	}
	return out
}
