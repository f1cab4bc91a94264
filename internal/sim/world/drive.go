package world

import (
	"cmp"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// drive is a parsed drive of a configuration.
type drive struct {
	volid   string // "fast:9011/vm-9011-disk-0.raw", "fast:10" (to be allocated), "none", "cdrom"
	options map[string]string
}

// isDriveKey says whether a configuration key is that of a drive or an unused volume.
func isDriveKey(key string) bool {
	name := strings.TrimRight(key, "0123456789")
	if key == "efidisk0" || key == "tpmstate0" {
		return true
	}
	return slices.Contains([]string{"ide", "sata", "scsi", "virtio", "unused"}, name) && inRange(key)
}

// String writes the drive as Proxmox prints it: the volume, then the options by name.
func (d drive) String() string {
	var b strings.Builder
	b.WriteString(d.volid)
	for _, name := range slices.Sorted(maps.Keys(d.options)) {
		b.WriteString("," + name + "=" + d.options[name])
	}
	return b.String()
}

func (d drive) cdrom() bool { return d.options["media"] == "cdrom" || d.volid == "cdrom" }

// empty says whether the drive has no volume.
func (d drive) empty() bool { return d.volid == "none" || d.volid == "cdrom" }

var requestPattern = regexp.MustCompile(`^([^:/\s]+):(\d+(?:\.\d+)?)$`)

// request parses "fast:10", a request for a volume of 10 GiB, or "fast:cloudinit".
func (d drive) request() (storage string, bytes int64, ok bool) {
	if name, ok := strings.CutSuffix(d.volid, ":cloudinit"); ok {
		return name, 0, true
	}
	m := requestPattern.FindStringSubmatch(d.volid)
	if m == nil {
		return "", 0, false
	}
	size, err := strconv.ParseFloat(m[2], 64)
	if err != nil {
		return "", 0, false
	}
	return m[1], int64(math.Ceil(size*(1<<20))) << 10, true // whole kilobytes (convert_size of pve-common)
}

// fixedSize is the size of EFI and TPM disks, for which Proxmox ignores the requested size.
func fixedSize(key string, asked int64) int64 {
	switch key {
	case "tpmstate0":
		return 4 << 20
	case "efidisk0":
		return 528 << 10
	}
	return asked
}

// driveKeys lists the drives of a configuration in bus order.
func driveKeys(config map[string]string) []string {
	var keys []string
	for key := range config {
		if isDriveKey(key) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

// compareKeys orders "scsi2" before "scsi10".
func compareKeys(a, b string) int {
	an, bn := withoutNumber(a), withoutNumber(b)
	if an != bn {
		return strings.Compare(an, bn)
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func withoutNumber(key string) string {
	n := len(key)
	for n > 0 && '0' <= key[n-1] && key[n-1] <= '9' {
		n--
	}
	return key[:n]
}

// bootOrder reads the drive and network keys of "boot: order=…".
func bootOrder(boot string) []string {
	for part := range strings.SplitSeq(boot, ",") {
		if list, ok := strings.CutPrefix(part, "order="); ok && list != "" {
			return strings.Split(list, ";")
		}
	}
	return nil
}

// withoutBoot removes a key from a boot order; see printBoot.
func withoutBoot(boot, key string) string {
	order := bootOrder(boot)
	if !slices.Contains(order, key) {
		return boot
	}
	return printBoot(slices.DeleteFunc(order, func(k string) bool { return k == key }))
}

// printBoot writes a boot order; an empty one is a blank, as in Proxmox.
func printBoot(order []string) string {
	if len(order) == 0 {
		return " "
	}
	return "order=" + strings.Join(order, ";")
}

// defaultBoot is the boot order of a VM created without one: first disk, first CD-ROM
// drive, first network card, bus by bus (resolve_first_disk in Drive.pm).
func defaultBoot(config map[string]string) string {
	var order []string
	for _, cdrom := range []bool{false, true} {
		if key := firstDrive(config, cdrom); key != "" {
			order = append(order, key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(config), compareKeys) {
		if optionName(key) == "net" {
			order = append(order, key)
			break
		}
	}
	return printBoot(order)
}

func firstDrive(config map[string]string, cdrom bool) string {
	keys := driveKeys(config)
	for _, bus := range []string{"ide", "scsi", "virtio", "sata"} {
		for _, key := range keys {
			if optionName(key) == bus && isCDROM(key, config[key]) == cdrom {
				return key
			}
		}
	}
	return ""
}
