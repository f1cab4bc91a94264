package world

import (
	"fmt"
	"slices"
	"strings"
)

// driveOptions lists the options of a drive (QemuServer/Drive.pm).
func driveOptions(key string) []string {
	bus := strings.TrimRight(key, "0123456789")
	if options, known := optionsOfBus[bus]; known {
		return options
	}
	return commonDriveOptions
}

var optionsOfBus = map[string][]string{
	"efidisk":  {"efitype", "format", "import-from", "ms-cert", "pre-enrolled-keys", "size"},
	"tpmstate": {"format", "import-from", "size", "version"},
	"unused":   nil,
	"ide":      slices.Concat(commonDriveOptions, []string{"model", "ssd", "wwn"}),
	"sata":     slices.Concat(commonDriveOptions, []string{"ssd", "wwn"}),
	"scsi":     slices.Concat(commonDriveOptions, []string{"iothread", "product", "queues", "ro", "scsiblock", "ssd", "vendor", "wwn"}),
	"virtio":   slices.Concat(commonDriveOptions, []string{"iothread", "ro"}),
}

var commonDriveOptions = []string{
	"aio", "backup", "cache", "detect_zeroes", "discard", "format", "import-from", "media", "replicate", "rerror", "serial", "shared",
	"size", "snapshot", "werror", "bps_max_length", "iops_max_length", "iops_max", "mbps_max",
	"bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr", "mbps", "mbps_rd", "mbps_wr",
	"bps_rd_max_length", "iops_rd_max_length", "iops_rd_max", "mbps_rd_max",
	"bps_wr_max_length", "iops_wr_max_length", "iops_wr_max", "mbps_wr_max",
}

// driveAliases maps aliases of options to the stored names.
var driveAliases = map[string]string{
	"volume": "file", "bps_rd_length": "bps_rd_max_length", "bps_wr_length": "bps_wr_max_length",
	"iops_rd_length": "iops_rd_max_length", "iops_wr_length": "iops_wr_max_length",
}

// switches are the boolean drive options; they are stored as 1 or 0.
var switches = []string{
	"backup", "detect_zeroes", "iothread", "pre-enrolled-keys", "replicate", "ro", "scsiblock", "shared", "snapshot", "ssd",
}

// parseDrive parses "fast:10,serial=s": a value without a key is the volume, at any
// position (parse_property_string in JSONSchema.pm).
func parseDrive(key, value string) (drive, error) {
	d := drive{options: map[string]string{}}
	known := driveOptions(key)
	for part := range strings.SplitSeq(value, ",") {
		name, v, hasKey := strings.Cut(part, "=")
		if !hasKey {
			name, v = "file", part
		}
		if alias, is := driveAliases[name]; is {
			name = alias
		}
		switch {
		case strings.TrimSpace(part) == "":
			continue
		case name == "" || v == "":
			return d, badDrive(key, "missing key in comma-separated list property")
		case d.has(name):
			return d, badDrive(key, "duplicate key in comma-separated list property: "+name)
		case name == "file":
			d.volid = v
			continue
		case !slices.Contains(known, name):
			return d, badDrive(key, "invalid key in comma-separated list property: "+name)
		}
		if slices.Contains(switches, name) {
			on, ok := ParseBool(v)
			if !ok {
				return d, badDrive(key, fmt.Sprintf("format error\n%s.%s: type check ('boolean') failed - got '%s'", key, name, v))
			}
			v = map[bool]string{true: "1", false: "0"}[on]
		}
		d.options[name] = v
	}
	if d.volid == "" {
		return d, badDrive(key, fmt.Sprintf("format error\n%s.file: property is missing and it is not optional", key))
	}
	return d, nil
}

func badDrive(key, problem string) error {
	return BadParam(key, "invalid format - %s\n", problem)
}

func (d drive) has(option string) bool {
	_, set := d.options[option]
	return set || option == "file" && d.volid != ""
}
