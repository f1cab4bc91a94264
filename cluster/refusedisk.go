package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// Reassigns are the types of storage that can give a volume to another VM:
// those whose plugin has the feature "rename" (pve-storage, volume_has_feature
// in PVE/Storage/*Plugin.pm). ZFS over iSCSI ("zfs") and iSCSI itself have not,
// CephFS holds no disks, and what is not known here can't be relied upon.
var Reassigns = []string{"btrfs", "cifs", "dir", "glusterfs", "lvm", "lvmthin", "nfs", "rbd", "zfspool"}

// ReferencedBy lists every place in these VMs that names a volume.
func ReferencedBy(volid string, vms []VM) []string {
	var out []string
	for _, vm := range vms {
		for key, value := range vm.Config {
			if !strings.Contains(value, volid) {
				continue // to take every value apart would cost the square of the VMs
			}
			if d, err := ParseDisk(key, value); err == nil && d.Volid == volid {
				out = append(out, PlaceOf(vm.ID, key))
			}
		}
	}
	slices.Sort(out)
	return out
}

func PlaceOf(vm VMID, key string) string { return fmt.Sprintf("%s of VM %d", key, vm) }

// OfHost says whether the drive is a device or a file of the host, by its path.
func (d Disk) OfHost() bool { return strings.HasPrefix(d.Volid, "/") }
