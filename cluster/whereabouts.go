package cluster

import (
	"fmt"
	"strings"
)

// lostTrack is what is known of a node that was taken out and whose record is
// nowhere: a hint for whoever deleted the parking VM, or its description.
func (o Observation) lostTrack(f Found) string {
	if f.Node == nil || f.Node.Mark == nil || f.Open() || f.Node.Mark.Strategy == InPlace {
		return ""
	}
	what := fmt.Sprintf("run %s had taken %s out to %s, and no parking VM has the record of that any more", f.Node.Mark.Run, f.Name, f.Node.Mark.Strategy.OnIt())
	if f.VM != nil {
		what += fmt.Sprintf("; %s has %s", f.VM, DrivesOf(*f.VM))
	}
	for _, vm := range o.VMs {
		if _, isRecord, _ := ReadRecord(vm); isRecord || vm.Name != ParkingName(f.Name) {
			continue
		}
		return fmt.Sprintf("%s: the description of %s, which has %s, was changed. Put it back as it was, then run the same command again", what, vm, DrivesOf(vm))
	}
	return what + ": somebody deleted it, and with it what was parked there. If the VM has all its disks, start it; else they, and its configuration, have to come from a backup"
}

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
