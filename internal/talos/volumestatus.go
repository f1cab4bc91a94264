package talos

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"

	"github.com/recast-sh/recast/cluster"
)

// holding are the types of volumes that hold data. The others are made anew at each boot, and so are the directories
// that every machine has (volumeconfig/system_volumes.go), whose IDs are paths.
var holding = []block.VolumeType{block.VolumeTypePartition, block.VolumeTypeDisk, block.VolumeTypeDirectory, block.VolumeTypeExternal}

// volumeStatuses are the volumes of the machine's configuration that hold data, sorted by ID.
func (v blockView) volumeStatuses() []cluster.VolumeStatus {
	var out []cluster.VolumeStatus
	for _, s := range v.statuses {
		id, spec := s.Metadata().ID(), s.TypedSpec()
		if !slices.Contains(holding, spec.Type) || spec.Type == block.VolumeTypeDirectory && path.IsAbs(id) {
			continue
		}
		out = append(out, cluster.VolumeStatus{
			ID: id, Type: cluster.VolumeType(spec.Type.String()), Phase: spec.Phase.String(), Error: spec.ErrorMessage,
			Location: spec.Location, Disk: v.driveAt(spec.Location), Mount: mountOf(spec.MountSpec), Slot: spec.EncryptionSlot,
		})
	}
	slices.SortFunc(out, func(a, b cluster.VolumeStatus) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// driveAt is the drive that a device is, or is a partition of; "" if none is.
func (v blockView) driveAt(location string) string {
	device, is := strings.CutPrefix(location, "/dev/")
	if !is {
		return ""
	}
	for _, found := range v.volumes {
		if spec := found.TypedSpec(); spec.DevPath == location {
			device = cmp.Or(spec.Parent, found.Metadata().ID())
		}
	}
	for _, d := range v.disks {
		if d.Metadata().ID() == device && isDrive(d) {
			return device
		}
	}
	return ""
}

// mountOf is where Talos mounts a volume. The parent of a mount is a directory, or EPHEMERAL
// (volumeconfig/system_volumes.go).
func mountOf(spec block.MountSpec) string {
	switch target, parent := spec.TargetPath, spec.ParentID; {
	case target == "":
	case parent == constants.EphemeralPartitionLabel:
		return path.Join(constants.EphemeralMountPoint, target)
	case path.IsAbs(parent):
		return path.Join(parent, target)
	case parent == "" && path.IsAbs(target):
		return path.Clean(target)
	}
	return ""
}
