package exchange

import (
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

// DiskNames lists disks by key and volume, for a message.
func DiskNames(disks []cluster.Disk) string {
	var names []string
	for _, d := range disks {
		names = append(names, fmt.Sprintf("%s (%s)", d.Key, d.Volid))
	}
	return strings.Join(names, ", ")
}

// ForeignDisks lists the drives of vm that mem does not record: pods' volumes, which it never
// records, and drives that were added later.
func ForeignDisks(vm cluster.VM, mem parking.Memory) ([]cluster.Disk, error) {
	have, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	before, err := mem.Disks()
	if err != nil {
		return nil, err
	}
	var foreign []cluster.Disk
	for _, d := range have {
		if _, had := cluster.FindDrive(before, d.Key); !d.CDROM && (!had || d.CSI()) {
			foreign = append(foreign, d)
		}
	}
	return foreign, nil
}
