package cluster

import (
	"slices"
	"strings"
)

// What Proxmox makes of a drive's options when it reads them (qemu-server,
// PVE/QemuServer/Drive.pm; pve-common, JSONSchema.pm, parse_property_string). A
// configuration keeps them as somebody wrote them until Proxmox writes that drive anew.
var (
	driveSwitches = []string{
		"backup", "detect_zeroes", "iothread", "pre-enrolled-keys", "replicate", "ro", "scsiblock", "shared", "snapshot", "ssd",
	}
	driveAliases = map[string]string{
		"bps_rd_length": "bps_rd_max_length", "bps_wr_length": "bps_wr_max_length",
		"iops_rd_length": "iops_rd_max_length", "iops_wr_length": "iops_wr_max_length",
	}
	// droppedOptions are forgotten by Proxmox 9, $DROPPED_PROPERTIES there.
	droppedOptions = []string{"cyls", "heads", "secs", "trans"}
	// byteRates become megabytes, of which parse_drive always makes 0.000: it
	// takes whether one is set for the number.
	byteRates = []string{"bps", "bps_rd", "bps_wr"}
)

// DriveOptions are options of a drive as Proxmox reads them, sorted, so that two
// drives can be compared. The size is none: it is the volume's, which Proxmox
// reads anew whenever it writes the drive (API2/Qemu.pm, create_disks), and
// somebody may resize it.
func DriveOptions(options []string) []string {
	var read []string
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		if alias, is := driveAliases[name]; is {
			name = alias
		}
		on, isBoolean := ParseBoolean(value)
		switch {
		case name == "size" || slices.Contains(droppedOptions, name) || strings.TrimSpace(o) == "":
			continue
		case slices.Contains(byteRates, name):
			name, value = "m"+name, "0.000"
		case slices.Contains(driveSwitches, name) && isBoolean:
			value = map[bool]string{true: "1", false: "0"}[on]
		}
		read = append(read, name+"="+value)
	}
	slices.Sort(read)
	return read
}

func SameOptions(a, b []string) bool { return slices.Equal(DriveOptions(a), DriveOptions(b)) }

// ParseBoolean reads a boolean as Proxmox does (pve-common, JSONSchema.pm, parse_boolean).
func ParseBoolean(s string) (on, ok bool) {
	switch strings.ToLower(s) {
	case "1", "on", "yes", "true":
		return true, true
	case "0", "off", "no", "false":
		return false, true
	}
	return false, false
}
