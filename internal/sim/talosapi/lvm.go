package talosapi

import (
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

const lvmPhysicalVolume = "lvm2-pv"

// inPool says whether a partition is a physical volume of LVM or a part of a ZFS pool.
func inPool(p artefact.Partition) bool {
	return p.Filesystem == lvmPhysicalVolume || p.Filesystem == "zfs"
}

// physicalVolumes are those that pvs shows on the machine (LVMScanController,
// internal/app/machined/pkg/controllers/storage/lvm_scan.go).
func physicalVolumes(devs []device) []resource.Resource {
	var rs []resource.Resource
	for _, d := range devs {
		for i, p := range d.disk.Partitions {
			if p.Filesystem != lvmPhysicalVolume {
				continue
			}
			name := d.partitionName(i + 1)
			r := storage.NewLVMPhysicalVolumeStatus(storage.NamespaceName, name)
			*r.TypedSpec() = storage.LVMPhysicalVolumeStatusSpec{
				Device: "/dev/" + name, VGName: p.VolumeGroup, UUID: p.FilesystemUUID, Format: "lvm2", Allocatable: "allocatable",
			}
			rs = append(rs, r)
		}
	}
	return rs
}
