package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// NameThem says how the machine is made to show which of its disks those drives are.
func NameThem(vm VM, drives []Disk) string {
	return fmt.Sprintf("%s, then shut VM %d down and start it (a reboot from inside is not enough), so that Talos shows the name", NameLines(vm, drives), vm.ID)
}

// NameLines are the commands for that. Where several drives can't be told apart, the
// last one needs no name once the others have one.
func NameLines(vm VM, drives []Disk) string {
	var lines []string
	for _, d := range drives[:max(1, len(drives)-1)] {
		lines = append(lines, d.NameLine(vm, true))
	}
	return strings.Join(lines, " && ")
}

// NameLine is the command that gives the drive a name of its own; where the machine has to show it,
// a WWN too: Talos shows no serial of a SCSI disk.
func (d Disk) NameLine(vm VM, shown bool) string {
	serial := fmt.Sprintf("%d-%s", vm.ID, d.Key)
	options := append(WithoutOption(d, "serial").Options, "serial="+serial)
	if shown && !strings.HasPrefix(d.Key, "virtio") {
		options = append(WithoutOption(Disk{Options: options}, "wwn").Options, "wwn="+WWN(serial))
	}
	return fmt.Sprintf("qm set %d --%s %s", vm.ID, d.Key, words.Quote(Disk{Volid: d.Volid, Options: options}.Value()))
}

// Identity is what is on one of the machine's disks, as far as it is told from other
// content by a name; "" where it is not.
func (m Machine) Identity(device string) string {
	var names []string
	for _, v := range m.Volumes {
		if v.Disk == device {
			names = append(names, strings.ToLower(strings.Join([]string{v.Label, v.PartitionUUID, v.FilesystemUUID, v.FilesystemLabel}, "/")))
		}
	}
	slices.Sort(names)
	return strings.Trim(strings.Join(names, " "), " /")
}

func (v Volume) String() string {
	return fmt.Sprintf("%s with partition UUID %s, filesystem UUID %s", cmp.Or(v.Label, v.FilesystemLabel, "none"), words.OrNone(v.PartitionUUID), words.OrNone(v.FilesystemUUID))
}
