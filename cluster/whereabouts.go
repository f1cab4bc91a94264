package cluster

import (
	"strings"
)

// DrivesOf lists the disks of a VM.
func DrivesOf(vm VM) string {
	disks, err := vm.Disks()
	if err != nil {
		return "drives that can't be read"
	}
	var have []string
	for _, d := range disks {
		if !d.CDROM {
			have = append(have, d.Key+" ("+d.Volid+")")
		}
	}
	if len(have) == 0 {
		return "no disk"
	}
	return strings.Join(have, ", ")
}

func ParkingName(node string) string { return "recast-parking-" + node }
