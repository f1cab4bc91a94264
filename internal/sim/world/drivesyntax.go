package world

import (
	"fmt"
	"slices"
	"strings"
)

// driveOptions lists what a drive may have besides its volume (QemuServer/Drive.pm).
func driveOptions(key string) []string {
	switch bus := strings.TrimRight(key, "0123456789"); bus {
	case "efidisk":
		return []string{"efitype", "format", "import-from", "ms-cert", "pre-enrolled-keys", "size"}
	case "tpmstate":
		return []string{"format", "import-from", "size", "version"}
	case "unused":
		return nil
	default:
		return slices.Concat(commonDriveOptions(), busOptions()[bus])
	}
}

func commonDriveOptions() []string {
	options := []string{
		"aio", "backup", "cache", "detect_zeroes", "discard", "format", "import-from", "media", "replicate", "rerror", "serial", "shared",
		"size", "snapshot", "werror", "bps_max_length", "iops_max_length", "iops_max", "mbps_max",
	}
	for _, limited := range []string{"bps", "iops", "mbps"} {
		options = append(options, limited, limited+"_rd", limited+"_wr")
	}
	for _, way := range []string{"_rd", "_wr"} {
		options = append(options, "bps"+way+"_max_length", "iops"+way+"_max_length", "iops"+way+"_max", "mbps"+way+"_max")
	}
	return options
}

func busOptions() map[string][]string {
	return map[string][]string{
		"ide":    {"model", "ssd", "wwn"},
		"sata":   {"ssd", "wwn"},
		"scsi":   {"iothread", "product", "queues", "ro", "scsiblock", "ssd", "vendor", "wwn"},
		"virtio": {"iothread", "ro"},
	}
}

// driveAliases are other names of options. What is stored has their own.
var driveAliases = map[string]string{
	"volume": "file", "bps_rd_length": "bps_rd_max_length", "bps_wr_length": "bps_wr_max_length",
	"iops_rd_length": "iops_rd_max_length", "iops_wr_length": "iops_wr_max_length",
}

// switches are the drive options that are true or false; what is stored is 1 or 0.
var switches = []string{
	"backup", "detect_zeroes", "iothread", "pre-enrolled-keys", "replicate", "ro", "scsiblock", "shared", "snapshot", "ssd",
}

// parseDrive reads "fast:10,serial=s": a value without a key is the volume,
// wherever it stands (parse_property_string in JSONSchema.pm).
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
