package cluster

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Disk is one drive of a VM's configuration, parsed.
type Disk struct {
	Key     string   // "scsi1", "efidisk0", "tpmstate0", "unused0", "ide2"
	Volid   string   // "fast:9011/vm-9011-disk-1.raw"; "none" and "cdrom" for an empty drive
	Owner   VMID     // from the volume's name; 0 when it has none (an ISO, a device path)
	CDROM   bool     // a CD drive, the cloud-init drive among them
	Options []string // everything after the volid, in order, as written
	Pod     bool     // a PersistentVolume names it: see VM.Pods; false where nobody has looked
}

var (
	diskKey = regexp.MustCompile(`^(?:(?:ide|sata|scsi|virtio|unused)\d+|efidisk0|tpmstate0)$`)
	// fileOwner is for storages of files, where the directory says whose a volume
	// is, whatever the file is called (Storage/Plugin.pm, parse_volname).
	fileOwner   = regexp.MustCompile(`^(?:\d+/[^/]+/)?(\d+)/[^/]+$`)
	volumeOwner = regexp.MustCompile(`(?:^|/)(?:vm|base)-(\d+)-[^/]+$`)
)

// IsDiskKey says whether a configuration key names a drive.
func IsDiskKey(key string) bool { return diskKey.MatchString(key) }

// ParseDisk parses a drive's value, "volid,option=value,…". What has no name, or
// the name file or volume, is the volume, wherever it stands (pve-common,
// JSONSchema.pm, parse_property_string).
func ParseDisk(key, value string) (Disk, error) {
	if !IsDiskKey(key) {
		return Disk{}, fmt.Errorf("%q is not a drive", key)
	}
	d := Disk{Key: key}
	for part := range strings.SplitSeq(value, ",") {
		name, volid, named := strings.Cut(part, "=")
		switch {
		case strings.TrimSpace(part) == "":
		case named && name != "file" && name != "volume":
			d.Options = append(d.Options, part)
		case d.Volid != "":
			return Disk{}, fmt.Errorf("%s: two volumes in %q", key, value)
		case named:
			d.Volid = volid
		default:
			d.Volid = part
		}
	}
	if d.Volid == "" || strings.Contains(d.Volid, "=") {
		return Disk{}, fmt.Errorf("%s: no volume in %q", key, value)
	}
	d.CDROM = slices.Contains(d.Options, "media=cdrom") || d.Volid == "none" || d.Volid == "cdrom" || d.CloudInit()
	if _, name, ok := strings.Cut(d.Volid, ":"); ok && !strings.HasPrefix(name, "iso/") {
		m := fileOwner.FindStringSubmatch(name)
		if m == nil {
			m = volumeOwner.FindStringSubmatch(name)
		}
		if m != nil {
			id, err := strconv.Atoi(m[1])
			if err != nil {
				return Disk{}, fmt.Errorf("%s: owner of %q: %w", key, d.Volid, err)
			}
			d.Owner = VMID(id)
		}
	}
	return d, nil
}

// CloudInit says whether this is Proxmox's own cloud-init drive: generated,
// freed and made anew with the VM.
func (d Disk) CloudInit() bool { return cloudInit.MatchString(d.Volid) }

// cloudInit is how Proxmox tells its own (PVE/QemuServer/Drive.pm,
// drive_is_cloudinit): vm-9011-data-cloudinit is somebody's disk.
var cloudInit = regexp.MustCompile(`[:/](?:vm-\d+-)?cloudinit(?:\.(?:raw|qcow2|vmdk))?$`)

// Storage is the part of the volid before the colon.
func (d Disk) Storage() string { s, _, _ := strings.Cut(d.Volid, ":"); return s }

// Option returns the value of an option, "" if it is not there.
func (d Disk) Option(name string) string {
	for _, o := range d.Options {
		if v, ok := strings.CutPrefix(o, name+"="); ok {
			return v
		}
	}
	return ""
}

// Flag says whether an option is on.
func (d Disk) Flag(name string) bool {
	on, _ := ParseBoolean(d.Option(name))
	return on
}

// With returns the options with one set to value, in its place or at the end.
func (d Disk) With(name, value string) []string {
	out := slices.Clone(d.Options)
	for i, o := range out {
		if strings.HasPrefix(o, name+"=") {
			out[i] = name + "=" + value
			return out
		}
	}
	return append(out, name+"="+value)
}

// Value is the drive as the configuration writes it.
func (d Disk) Value() string { return strings.Join(append([]string{d.Volid}, d.Options...), ",") }

// Bootable says whether the drive can be the one that Talos is installed on:
// a disk on a bus, neither CD, EFI variables, TPM state nor detached.
func (d Disk) Bootable() bool {
	return !d.CDROM && d.Key != "efidisk0" && d.Key != "tpmstate0" && !d.Detached()
}

// Detached says whether the drive is an unusedN: a volume that the VM has and its guest has not.
func (d Disk) Detached() bool { return strings.HasPrefix(d.Key, "unused") }

// SizeBytes is the size= option in bytes; 0 if it is missing or unreadable.
func (d Disk) SizeBytes() uint64 {
	v := d.Option("size")
	if v == "" {
		return 0
	}
	unit := map[byte]uint64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}[v[len(v)-1]]
	digits := v
	if unit == 0 {
		unit = 1
	} else {
		digits = v[:len(v)-1]
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || n < 0 {
		return 0
	}
	return uint64(n * float64(unit))
}

// Disks parses every drive of the VM, ordered by bus and number.
func (vm VM) Disks() ([]Disk, error) {
	var disks []Disk
	for key, value := range vm.Config {
		if !IsDiskKey(key) {
			continue
		}
		d, err := ParseDisk(key, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", vm, err)
		}
		d.Pod = slices.Contains(vm.Pods, d.Volid)
		disks = append(disks, d)
	}
	slices.SortFunc(disks, func(a, b Disk) int { return CompareKeys(a.Key, b.Key) })
	return disks, nil
}

// CompareKeys orders "scsi2" before "scsi10".
func CompareKeys(a, b string) int {
	busA, busB := strings.TrimRight(a, "0123456789"), strings.TrimRight(b, "0123456789")
	if busA != busB {
		return strings.Compare(busA, busB)
	}
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func FindDrive(disks []Disk, key string) (Disk, bool) {
	i := slices.IndexFunc(disks, func(d Disk) bool { return d.Key == key && !d.CDROM })
	if i < 0 {
		return Disk{}, false
	}
	return disks[i], true
}
