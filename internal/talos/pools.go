package talos

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"

	"github.com/recast-sh/recast/cluster"
)

// readPhysicalVolumes reads LVM's physical volumes, if there are any: Talos reports
// them since 1.14 (LVMScanController, controllers/storage).
func readPhysicalVolumes(ctx context.Context, s session, volumes []*block.DiscoveredVolume) ([]*storage.LVMPhysicalVolumeStatus, error) {
	if !slices.ContainsFunc(volumes, func(found *block.DiscoveredVolume) bool { return found.TypedSpec().Name == cluster.FormatLVM }) {
		return nil, nil
	}
	return list[*storage.LVMPhysicalVolumeStatus](ctx, s, storage.NewLVMPhysicalVolumeStatus(storage.NamespaceName, "").Metadata())
}

// poolMembers returns the devices that carry a part of a volume group or of a ZFS
// pool. What is on a network device (RBD) is not on this machine.
func (v blockView) poolMembers() []cluster.PoolMember {
	var out []cluster.PoolMember
	seen := map[string]bool{}
	for _, found := range v.volumes {
		spec, device := found.TypedSpec(), found.Metadata().ID()
		on := cmp.Or(spec.Parent, device)
		if spec.Name != cluster.FormatLVM && spec.Name != cluster.FormatZFS || strings.HasPrefix(on, "rbd") {
			continue
		}
		member := cluster.PoolMember{Device: device, Disks: v.drivesUnder(on), Format: spec.Name}
		if spec.Name == cluster.FormatLVM {
			// The probe has the UUID of the physical volume as its label (blkid, filesystems/lvm2).
			seen[spec.Label] = true
			member.Group = v.groupOf(spec.Label)
		}
		out = append(out, member)
	}
	for _, pv := range v.physical {
		if spec := pv.TypedSpec(); !seen[spec.UUID] { // missing, or on a device that was not probed
			out = append(out, cluster.PoolMember{Device: strings.TrimPrefix(spec.Device, "/dev/"), Format: cluster.FormatLVM, Group: spec.VGName})
		}
	}
	slices.SortFunc(out, func(a, b cluster.PoolMember) int { return cmp.Compare(a.Device, b.Device) })
	return out
}

// groupOf is the volume group of a physical volume, by its UUID.
func (v blockView) groupOf(uuid string) string {
	for _, pv := range v.physical {
		if uuid != "" && pv.TypedSpec().UUID == uuid {
			return pv.TypedSpec().VGName
		}
	}
	return ""
}

// drivesUnder returns the drives below a device: itself, or those below an
// encrypted, mapped or mirrored one; none if one of them is not a drive.
func (v blockView) drivesUnder(device string) []string {
	i := slices.IndexFunc(v.disks, func(d *block.Disk) bool { return d.Metadata().ID() == device })
	if i < 0 {
		return nil
	}
	if isDrive(v.disks[i]) {
		return []string{device}
	}
	var out []string
	for _, below := range v.disks[i].TypedSpec().SecondaryDisks {
		if below == device {
			return nil
		}
		drives := v.drivesUnder(below)
		if len(drives) == 0 {
			return nil
		}
		out = append(out, drives...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
