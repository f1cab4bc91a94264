package cluster

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Where a disk is in sysfs, below /devices: the slot of the controller on its PCI
// bus, and for SCSI the address on the controller, host:channel:target:lun. Disks of
// SATA, USB and the network have such an address too, but behind something else.
var (
	virtioBlk  = regexp.MustCompile(`/[0-9a-f]{4}:[0-9a-f]{2}:([0-9a-f]{2})\.0/virtio\d+$`)
	virtioSCSI = regexp.MustCompile(`/virtio\d+/host\d+/target[0-9:]+/\d+:0:0:(\d+)$`)
	otherSCSI  = regexp.MustCompile(`/[0-9a-f]{4}:[0-9a-f]{2}:([0-9a-f]{2})\.0/host\d+/target[0-9:]+/\d+:0:(\d+):0$`)
)

// addressed reads off a disk's address which drive it is, as qemu-server places them
// (print_drivedevice_full in DriveDevice.pm, get_pci_addr_map in PCI.pm): scsiN is
// LUN N of target 0 with the virtio controllers, target N with PVSCSI, and one of
// seven targets of an LSI controller; virtioN has a slot of its own. Two of those
// are on different buses with one slot. ok is false where the address tells nothing.
func addressed(scsihw, busPath string) (keys []string, ok bool) {
	if at := virtioBlk.FindStringSubmatch(busPath); at != nil {
		switch slot := slotNumber(at[1]); {
		case slot == 10:
			return []string{"virtio0", "virtio15"}, true
		case slot > 10 && slot <= 15:
			return []string{fmt.Sprintf("virtio%d", slot-10)}, true
		case slot >= 1 && slot < 10:
			return []string{fmt.Sprintf("virtio%d", slot+5)}, true
		}
		return nil, true
	}
	if strings.HasPrefix(scsihw, "virtio-scsi") {
		if at := virtioSCSI.FindStringSubmatch(busPath); at != nil {
			return []string{"scsi" + at[1]}, true
		}
		return nil, false
	}
	at := otherSCSI.FindStringSubmatch(busPath)
	if at == nil {
		return nil, false
	}
	target, err := strconv.Atoi(at[2])
	switch slot := slotNumber(at[1]); {
	case err != nil:
	case scsihw == "pvscsi" && slot == firstSCSI:
		return []string{fmt.Sprintf("scsi%d", target)}, true
	case (scsihw == "" || strings.HasPrefix(scsihw, "lsi")) && (slot == firstSCSI || slot == firstSCSI+1):
		return []string{fmt.Sprintf("scsi%d", (slot-firstSCSI)*7+target)}, true
	}
	return nil, false
}

// firstSCSI is the slot of the first SCSI controller; the second one is in the next.
const firstSCSI = 5

func slotNumber(hex string) int {
	n, err := strconv.ParseInt(hex, 16, 64)
	if err != nil {
		return -1
	}
	return int(n)
}
