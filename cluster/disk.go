package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Disk is one drive of a VM's configuration, parsed.
type Disk struct {
	Key     string   // "scsi1", "efidisk0", "tpmstate0", "unused0", "ide2"
	Volid   string   // "fast:9011/vm-9011-disk-1.raw"; "none" and "cdrom" for an empty drive
	Owner   VMID     // from the volume's name; 0 when it has none (an ISO, a device path)
	CDROM   bool     // a CD drive or the cloud-init drive
	Options []string // everything after the volid, in order, as written
	Pod     bool     // a PersistentVolume names it: see VM.Pods; false if that was not read
}

var (
	diskKey = regexp.MustCompile(`^(?:(?:ide|sata|scsi|virtio|unused)\d+|efidisk0|tpmstate0)$`)
	// fileOwner is for file storages: the directory names a volume's owner (Storage/Plugin.pm, parse_volname).
	fileOwner   = regexp.MustCompile(`^(?:\d+/[^/]+/)?(\d+)/[^/]+$`)
	volumeOwner = regexp.MustCompile(`(?:^|/)(?:vm|base)-(\d+)-[^/]+$`)
)

func IsDiskKey(key string) bool { return diskKey.MatchString(key) }

// ParseDisk parses "volid,option=value,…". The volume has no name, or file or volume, anywhere (parse_property_string).
func ParseDisk(key, value string) (Disk, error) {
	if !IsDiskKey(key) {
		return Disk{}, fmt.Errorf("%q is not a drive", key)
	}
	d := Disk{Key: key}
	if n := strings.Count(value, ","); n > 0 {
		d.Options = make([]string, 0, n)
	}
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

// CloudInit says whether this is Proxmox's own cloud-init drive, which it generates and deletes with the VM.
func (d Disk) CloudInit() bool { return cloudInit.MatchString(d.Volid) }

// cloudInit matches Proxmox's own cloud-init drives (drive_is_cloudinit). vm-9011-data-cloudinit is a user's disk.
var cloudInit = regexp.MustCompile(`[:/](?:vm-\d+-)?cloudinit(?:\.(?:raw|qcow2|vmdk))?$`)

func (d Disk) Storage() string { s, _, _ := strings.Cut(d.Volid, ":"); return s }

func (d Disk) Option(name string) string {
	for _, o := range d.Options {
		if v, ok := strings.CutPrefix(o, name+"="); ok {
			return v
		}
	}
	return ""
}

func (d Disk) Flag(name string) bool {
	on, _ := ParseBoolean(d.Option(name))
	return on
}

// With returns the options with one option set to value, in its place or at the end.
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

func (d Disk) Value() string { return strings.Join(append([]string{d.Volid}, d.Options...), ",") }

// Bootable says whether Talos can be installed on the drive: no CD, EFI variables, TPM state or detached volume.
func (d Disk) Bootable() bool {
	return !d.CDROM && d.Key != "efidisk0" && d.Key != "tpmstate0" && !d.Detached()
}

// Detached says whether the drive is an unusedN: a volume that the VM owns but its guest does not see.
func (d Disk) Detached() bool { return strings.HasPrefix(d.Key, "unused") }

// SizeBytes is the size= option in bytes; 0 if it is missing or unreadable.
func (d Disk) SizeBytes() uint64 {
	v := d.Option("size")
	if v == "" {
		return 0
	}
	unit := cmp.Or(map[byte]uint64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}[v[len(v)-1]], 1)
	digits := v
	if unit > 1 {
		digits = v[:len(v)-1]
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || n < 0 {
		return 0
	}
	return uint64(n * float64(unit))
}

// Disks parses every drive of the VM, ordered by bus and number.
func (vm VM) Disks() (disks []Disk, err error) {
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
	return cmp.Or(strings.Compare(busA, busB), len(a)-len(b), strings.Compare(a, b))
}

func FindDrive(disks []Disk, key string) (Disk, bool) {
	return Find(disks, func(d Disk) bool { return d.Key == key && !d.CDROM })
}

// A disk's path in sysfs, below /devices: the slot of the controller on its PCI bus, and for SCSI the address on the
// controller, host:channel:target:lun. SATA, USB and network disks have such an address too, but below other devices.
var (
	virtioBlk  = regexp.MustCompile(`/[0-9a-f]{4}:[0-9a-f]{2}:([0-9a-f]{2})\.0/virtio\d+$`)
	virtioSCSI = regexp.MustCompile(`/virtio\d+/host\d+/target[0-9:]+/\d+:0:0:(\d+)$`)
	otherSCSI  = regexp.MustCompile(`/[0-9a-f]{4}:[0-9a-f]{2}:([0-9a-f]{2})\.0/host\d+/target[0-9:]+/\d+:0:(\d+):0$`)
)

// addressed returns the drives that a disk's bus address can mean, as qemu-server places them (print_drivedevice_full
// in DriveDevice.pm, get_pci_addr_map in PCI.pm): scsiN is LUN N of target 0 with the virtio controllers, target N with
// PVSCSI, and one of seven targets of an LSI controller; virtioN has its own slot, but two of them share one on
// different buses. ok is false if the address shows no drive.
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

// firstSCSI is the slot of the first SCSI controller; the second one has the next slot.
const firstSCSI = 5

func slotNumber(hex string) int {
	n, _ := strconv.ParseInt(hex, 16, 64) // two digits: no error
	return int(n)
}

// How Proxmox reads a drive's options (Drive.pm, parse_property_string), which stay as written until it rewrites them.
var (
	driveSwitches = []string{
		"backup", "detect_zeroes", "iothread", "pre-enrolled-keys", "replicate", "ro", "scsiblock", "shared", "snapshot", "ssd",
	}
	driveAliases = map[string]string{
		"bps_rd_length": "bps_rd_max_length", "bps_wr_length": "bps_wr_max_length",
		"iops_rd_length": "iops_rd_max_length", "iops_wr_length": "iops_wr_max_length",
	}
	// droppedOptions are dropped by Proxmox 9 ($DROPPED_PROPERTIES there).
	droppedOptions = []string{"cyls", "heads", "secs", "trans"}
	// byteRates become megabytes, but always 0.000: parse_drive converts the boolean "is set", not the number.
	byteRates = []string{"bps", "bps_rd", "bps_wr"}
)

// DriveOptions returns a drive's options as Proxmox reads them, sorted, to compare two drives. It leaves out the size,
// which users can change, and which Proxmox reads again whenever it writes the drive (API2/Qemu.pm, create_disks).
func DriveOptions(options []string) (read []string) {
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		name = cmp.Or(driveAliases[name], name)
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

// Reassigns are the storage types that can give a volume to another VM: those whose plugin has the feature "rename"
// (pve-storage, volume_has_feature in PVE/Storage/*Plugin.pm). ZFS over iSCSI ("zfs") and iSCSI itself do not have it,
// CephFS holds no disks, and unknown types count as unable.
var Reassigns = []string{"btrfs", "cifs", "dir", "glusterfs", "lvm", "lvmthin", "nfs", "rbd", "zfspool"}

func ReferencedBy(volid string, vms []VM) (out []string) {
	for _, vm := range vms {
		for key, value := range vm.Config {
			if !strings.Contains(value, volid) {
				continue // parsing every value would be quadratic in the number of VMs
			}
			if d, err := ParseDisk(key, value); err == nil && d.Volid == volid {
				out = append(out, PlaceOf(vm.ID, key))
			}
		}
	}
	slices.Sort(out)
	return out
}

// PlaceOf names a drive: "scsi0 of VM 101".
func PlaceOf(vm VMID, key string) string { return fmt.Sprintf("%s of VM %d", key, vm) }

// OfHost says whether the drive is a device or a file of the host, named by its path.
func (d Disk) OfHost() bool { return strings.HasPrefix(d.Volid, "/") }

// Use is a VM or a snapshot with the values of its configuration.
type Use struct {
	By     string // as VM prints: `VM 101 "cp1" on pve1`, or "snapshot before of VM 101 …"
	Values []string
}

func OptionString(d Disk) string { return strings.Join(d.Options, ",") }

func SplitOptions(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func JoinOptions(volid, options string) string {
	return Disk{Volid: volid, Options: SplitOptions(options)}.Value()
}

// OtherMedia returns the VM's media that are not for the blank boot, by drive. Any ISO may hold cloud-init data,
// which would configure the machine before recast does (Talos, platform/nocloud/metadata.go, configFromCD).
// OtherMedia leaves out boot ISOs, and the medium in the drive that the boot ISO takes.
func (vm VM) OtherMedia() (map[string]Disk, error) {
	disks, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	cd, out := CDKey(vm.Config, disks), map[string]Disk{}
	for _, d := range disks {
		if _, ours := BootISO(d); d.CDROM && !d.CloudInit() && !ours && d.Key != cd && strings.Contains(d.Volid, ":") {
			out[d.Key] = WithoutOption(d, "size")
		}
	}
	return out, nil
}

// DiskSelector is what one document of a machine configuration selects: disks of a machine, or volumes on them.
type DiskSelector struct {
	ID       string // of the volume that the selector is for, as in VolumeStatus; "": for no volume
	Document string // "UserVolumeConfig data", "machine.install.diskSelector"
	Match    string // the expression, or the device of machine.disks
	Kind     SelectorKind
	Found    []string // what matches, in Talos' order: "sdb", "sdb1"; without what Talos never takes
	System   string   // the entry of Found that is on the system disk; "": none is
	Unknown  string   // why the selector can't be evaluated now; "": it was evaluated
	Broken   string   // Talos' own error: the selector fails with it on each machine
}

// SelectorKind says what Talos does with the matches of a selector.
type SelectorKind string

// The kinds of selectors.
const (
	ForPartition SelectorKind = "partition" // made on the first disk with room, if no partition has its label yet
	ForWholeDisk SelectorKind = "disk"      // the volume is the disk, looked for at each boot
	ForDevice    SelectorKind = "device"    // of machine.disks: its partitions are found by their numbers
	ForExisting  SelectorKind = "existing"  // a volume that somebody else has made, looked for at each boot
	ForMembers   SelectorKind = "members"   // of a volume group or array
	ForInstall   SelectorKind = "install"
)

// outcomes say what Talos does if a selector matches nothing, more than one thing, or something on the system disk
// (block/internal/volumes/locate.go, user_disk_config.go, unattended_install.go); "": Talos does what was intended.
type outcomes struct {
	noun                     string // what the selector looks for
	nothing, several, system string
	fatal                    string // the outcomes, by field, with which the node would not be whole
}

const (
	noVolume   = "Talos could not make the volume, and the node would not be whole: attach the disk first, or change the selector"
	noExisting = "pods would write to EPHEMERAL below its path instead, and the node would not be whole: attach the disk first, or change the selector"
	onSystem   = "what is on it goes with the system disk when the node is recreated"
	otherUse   = "which has partitions of Talos: it could not be used, and the node would not be whole"
)

var selectorOutcomes = map[SelectorKind]outcomes{
	ForPartition: {"disk", noVolume, "Talos takes the first one with room", onSystem, "nothing"},
	ForWholeDisk: {"disk", noVolume, "Talos refuses that for a whole disk, and the node would not be whole", otherUse, "nothing several system"},
	ForDevice:    {"disk", "Talos waits for it, and the node would not come up: attach the disk first, or change the device", "", otherUse, "nothing system"},
	ForExisting:  {"volume", noExisting, "Talos takes the first one that it lists, at each boot", onSystem, "nothing"},
	ForMembers:   {"volume", "Talos makes the array or group once one does, for example a volume of the same configuration", "", "", ""},
	ForInstall:   {"disk", "recast names the disk itself, but nobody else could install the machine with it", "recast names the disk itself, Talos alone would erase the first one", "", ""},
}

// TellSelectors returns notes for the user, and as refused the selectors with which the machine would not be whole.
func TellSelectors(selectors []DiskSelector, machine string) (notes, refused []string) {
	later := map[string][]string{} // documents, by the reason why they can't be evaluated
	for _, s := range selectors {
		if s.Unknown != "" {
			later[s.Unknown] = append(later[s.Unknown], s.Document)
			continue
		}
		text, fatal := s.tell(machine)
		switch {
		case text == "":
		case fatal:
			refused = append(refused, text)
		default:
			notes = append(notes, text)
		}
	}
	for _, s := range selectors {
		if documents := later[s.Unknown]; s.Unknown != "" && len(documents) > 0 {
			notes = append(notes, fmt.Sprintf("what %s selects can't be evaluated yet: %s", strings.Join(documents, ", "), s.Unknown))
			delete(later, s.Unknown)
		}
	}
	return notes, refused
}

func (s DiskSelector) tell(machine string) (text string, fatal bool) {
	o := selectorOutcomes[s.Kind]
	of := "the selector of " + s.Document
	if s.Kind == ForDevice {
		of = s.Document
	}
	var says []string
	add := func(field, format string, a ...any) {
		says, fatal = append(says, fmt.Sprintf(format, a...)), fatal || slices.Contains(strings.Fields(o.fatal), field)
	}
	switch {
	case s.Broken != "":
		return fmt.Sprintf("Talos can't evaluate %s: %s", of, s.Broken), s.Kind != ForMembers && s.Kind != ForInstall
	case len(s.Found) == 0:
		add("nothing", "no %s of %s matches %s: %s", o.noun, machine, of, o.nothing)
	case len(s.Found) > 1 && o.several != "":
		add("several", "%d %ss match %s (%s): %s", len(s.Found), o.noun, of, strings.Join(s.Found, ", "), o.several)
	}
	if s.System != "" && o.system != "" && !s.byDefault() {
		add("system", "%s matches the system disk (%s): %s", of, s.System, o.system)
	}
	return strings.Join(says, "; "), fatal
}

// byDefault says whether the selector of a system volume puts the volume where Talos puts it without a selector.
func (s DiskSelector) byDefault() bool {
	return s.Match == "system_disk" && strings.HasPrefix(s.Document, "VolumeConfig ")
}

// Room is the space that a host has for disks of VMs.
type Room struct {
	Storages  []StorageRoom // the storages that take disks of VMs on the host, by name
	ThinPools []ThinPool    // of the host, if such a storage is on one
	ErrPools  error         // of reading ThinPools
	Err       error         // why none of this could be read
}

// StorageRoom is one storage as a host sees it. A storage that is not active has no figures.
type StorageRoom struct {
	Name        string
	Active      bool
	Total, Free int64 // bytes

	Ceph    bool     // on the Proxmox hosts' own Ceph, which reports Blocked and Notes
	Blocked string   // why reads or writes wait; "": they do not wait
	Notes   []string // what may become worse
}

// FullPool is how full a thin pool may be: without room, every disk in it fails, not only the one that grew.
const FullPool = 0.9

func Size(bytes int64) string {
	if bytes < 10<<30 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d GiB", bytes>>30)
}

// RoomOn reads the room on the storages of a host; Room.Err says why it could not be read.
func RoomOn(ctx context.Context, px StorageReader, host string) Room {
	room, err := px.Room(ctx, host)
	room.Err = err
	return room
}

// Host is the state of a Proxmox node, as the node says itself. What could not be read is zero; Errs has the reason.
type Host struct {
	Name      string
	Online    bool
	Entry     bool   // the host whose API answered: uploads are spooled there
	Version   string // "9.2.11"
	Clock     time.Time
	Asked     time.Time // the time to compare Clock with
	SpoolFree int64     // bytes free on its root filesystem, which has /var/tmp
	ThinPools []ThinPool
	ErrPools  error // of reading ThinPools: a host need not have LVM at all
	Errs      []error
}

// ThinPool is an LVM thin pool of a host.
type ThinPool struct {
	VG, Name           string
	Size, Used         int64 // bytes
	MetaSize, MetaUsed int64
}

func (s Storage) CanReassign() bool { return slices.Contains(Reassigns, s.Type) }

// SameVolume says whether two drives name one volume, in whatever spelling: with or without the base of a
// linked clone (pve-storage, Storage/Plugin.pm, filesystem_path, leaves that out), by two storages on the
// same space, or by its path. Both drives must be of VMs that see the same storages.
func SameVolume(a, b Disk, storages []Storage) bool {
	switch {
	case a.Volid == b.Volid:
		return true
	case a.OfHost() && b.OfHost():
		return path.Clean(a.Volid) == path.Clean(b.Volid)
	case a.OfHost():
		return atPath(a.Volid, b, storages)
	case b.OfHost():
		return atPath(b.Volid, a, storages)
	}
	return a.image() == b.image() && samePlace(a.Storage(), b.Storage(), storages)
}

// NamesVolume: two slots can't share what the drive names: no ISO, no empty drive, no generated cloud-init drive.
func (d Disk) NamesVolume() bool {
	return strings.ContainsAny(d.Volid, ":/") && !d.CloudInit() && (!d.CDROM || d.Owner != 0)
}

// image is the volume's name on its storage without a linked clone's base: "9011/vm-9011-disk-1.raw", "vm-9011-disk-1".
func (d Disk) image() string {
	_, name, _ := strings.Cut(d.Volid, ":")
	dir, file := path.Split(name)
	if owner := path.Base(dir); owner != "" {
		if _, err := strconv.Atoi(owner); err == nil {
			return owner + "/" + file
		}
	}
	return file
}

// Mentions says whether a drive's value can name the volume: a quick test before it is parsed.
func (d Disk) Mentions(value string) bool {
	if d.OfHost() {
		return strings.Contains(value, ":") || strings.Contains(value, "/")
	}
	_, name, _ := strings.Cut(d.Volid, ":")
	_, name = path.Split(name)
	name = path.Base(name)
	return strings.Contains(value, name) || strings.Contains(value, "--") && strings.Contains(value, strings.ReplaceAll(name, "-", "--"))
}

func samePlace(a, b string, storages []Storage) bool {
	if a == b {
		return true
	}
	s, okS := storageNamed(a, storages)
	t, okT := storageNamed(b, storages)
	if !okS || !okT {
		return false
	}
	return s.Dir != "" && s.Dir == t.Dir || s.Pool != "" && s.volumeGroup() == t.volumeGroup()
}

func storageNamed(name string, storages []Storage) (Storage, bool) {
	return Find(storages, func(s Storage) bool { return s.Name == name })
}

// volumeGroup is the namespace of a volume's name. Thin and thick volumes of one LVM group share it.
func (s Storage) volumeGroup() string {
	if strings.HasPrefix(s.Type, "lvm") {
		group, _, _ := strings.Cut(s.Pool, "/")
		return "lvm " + group
	}
	return s.Pool
}

// atPath: a host's path is a volume's. The device mapper doubles hyphens; without the storage's path, the name decides.
func atPath(at string, d Disk, storages []Storage) bool {
	at = strings.ReplaceAll(path.Clean(at), "--", "-")
	name := path.Base(d.image())
	if base := path.Base(at); base != name && !(strings.HasPrefix(at, "/dev/mapper/") && strings.HasSuffix(base, "-"+name)) {
		return false
	}
	s, _ := storageNamed(d.Storage(), storages)
	switch {
	case s.Dir != "":
		return strings.HasPrefix(at, s.Dir+"/")
	case strings.HasPrefix(s.Type, "lvm") && s.Pool != "":
		group, _, _ := strings.Cut(s.Pool, "/")
		return strings.HasPrefix(at, "/dev/"+group+"/") || strings.HasPrefix(at, "/dev/mapper/"+group+"-")
	case s.Type == "zfspool" && s.Pool != "":
		return strings.HasSuffix(path.Dir(at), strings.TrimPrefix(s.Pool, "zfs "))
	}
	return true
}

// ProveSystemDisk finds Talos' drive by what the running machine says about its system disk (see matchDisk), never by a
// guess. slot is the drive that the user configured ("scsi0", or "" for none), and must be the same drive.
func ProveSystemDisk(vm VM, m Machine, slot string) (Disk, error) {
	refuse := func(format string, args ...any) (Disk, error) {
		err := fault.SystemDiskUnproven.Refusedf("%s: system disk can't be proven: %s", vm, fmt.Sprintf(format, args...))
		return Disk{}, fault.WithHint(err, "%s", NameDrives(vm))
	}
	candidates, err := vm.Bootable()
	if err != nil {
		return Disk{}, err
	}
	system, ok := m.disk(m.SystemDisk)
	if !ok {
		return refuse("the machine does not name it")
	}
	found, how := matchDisk(vm, candidates, m, system)
	switch {
	case len(found) == 0:
		return refuse("no drive matches %s (%s)", system.Device, how)
	case len(found) > 1:
		return refuse("%d drives match %s (%s)", len(found), system.Device, how)
	case slot != "" && slot != found[0].Key:
		err := fault.SystemDiskUnproven.Refusedf("%s: system disk can't be proven: the configuration says %s, but the machine runs from %s (%s)", vm, slot, found[0].Key, how)
		return Disk{}, fault.WithHint(err, "correct or remove nodes[].systemDisk.slot")
	}
	return found[0], nil
}

// NameDrives says how to make a machine show which of its disks is which drive.
func NameDrives(vm VM) string {
	return fmt.Sprintf("give the drive a name of its own that Talos shows: with qm set %d add wwn=0x3 and 15 more hex digits to it (serial= if it is a virtioN), restart the VM once, "+
		"and try again; with scsihw virtio-scsi-single SCSI drives need none", vm.ID)
}

// Bootable are the VM's drives that can be disks of the machine.
func (vm VM) Bootable() ([]Disk, error) {
	disks, err := vm.Disks()
	return slices.DeleteFunc(disks, func(d Disk) bool { return !d.Bootable() }), err
}

func (m Machine) disk(device string) (MachineDisk, bool) {
	return Find(m.Disks, func(d MachineDisk) bool { return device != "" && d.Device == device })
}

// MachineDisks returns the machine's disks that match that drive of the VM and no other.
func (m Machine) MachineDisks(vm VM, drives []Disk, key string) []MachineDisk {
	return Where(m.Disks, func(disk MachineDisk) bool {
		found, _ := matchDisk(vm, drives, m, disk)
		return len(found) == 1 && found[0].Key == key
	})
}

// PersistentVolumes returns the volumes on the VM's own persistent drives. It leaves out network disks, which come and
// go with pods. It fails if a volume's drive is unknown: a lost volume would go unnoticed.
func PersistentVolumes(vm VM, drives []Disk, m Machine, system Disk) (out []Volume, err error) {
	known, own := map[string]bool{}, map[string]bool{}
	var lost []Disk
	var keys []string
	for _, d := range drives {
		on := m.MachineDisks(vm, drives, d.Key)
		if len(on) != 1 {
			lost, keys = append(lost, d), append(keys, d.Key)
			continue
		}
		known[on[0].Device], own[on[0].Device] = true, d.Key != system.Key
	}
	for _, v := range m.Volumes {
		switch {
		case own[v.Disk]:
			out = append(out, v)
		case !known[v.Disk] && len(lost) > 0:
			err := fault.SystemDiskUnproven.Refusedf("what is on %s (%s) could be on %s, and which of the machine's disks that is can't be determined", v.Disk, words.OrNone(v.Label), strings.Join(keys, " or "))
			return nil, fault.WithHint(err, "%s", NameThem(vm, lost))
		}
	}
	return out, nil
}

// matchDisk finds the drives that can be the machine's disk, and says how: by a name or a bus address that both have,
// else by a size that no other disk has. It leaves out drives that match another disk by name or address.
func matchDisk(vm VM, drives []Disk, m Machine, disk MachineDisk) (found []Disk, how string) {
	if found, how := tellDisk(vm, drives, disk); how != "" {
		return found, how
	}
	left := slices.Clone(drives)
	for _, other := range m.Disks {
		if other.Device == disk.Device {
			continue
		}
		if told, _ := tellDisk(vm, drives, other); len(told) == 1 {
			left = slices.DeleteFunc(left, func(d Disk) bool { return d.Key == told[0].Key })
		} else if other.SizeBytes == disk.SizeBytes {
			return nil, "no serial or WWID of a drive, and " + other.Device + " has the same size"
		}
	}
	return slices.DeleteFunc(left, func(d Disk) bool {
		return disk.SizeBytes == 0 || d.SizeBytes() != disk.SizeBytes || d.contradicts(disk)
	}), fmt.Sprintf("size %d", disk.SizeBytes)
}

// tellDisk is matchDisk by the disk's own name or address only; how is "" if the disk shows neither. Talos shows no
// serial of SCSI and SATA disks: only newer kernels have them in sysfs (GetProperties in go-blockdevice).
func tellDisk(vm VM, drives []Disk, disk MachineDisk) (found []Disk, how string) {
	keep := func(match func(Disk) bool) []Disk { return Where(drives, match) }
	if found := keep(func(d Disk) bool { return disk.WWID != "" && slices.Contains(d.wwids(), disk.WWID) }); len(found) > 0 {
		return found, "WWID " + disk.WWID
	}
	if found := keep(func(d Disk) bool { return disk.Serial != "" && d.hasSerial(disk.Serial) }); len(found) > 0 {
		return found, "serial " + disk.Serial
	}
	if keys, ok := addressed(vm.Config["scsihw"], disk.BusPath); ok {
		return keep(func(d Disk) bool { return slices.Contains(keys, d.Key) && !d.contradicts(disk) }), "address " + disk.BusPath
	}
	return nil, ""
}

// serial returns the drive's serial, as qemu-server reads it (print_drivedevice_full); "" for none.
func (d Disk) serial() string {
	serial, _ := url.PathUnescape(d.Option("serial")) // "" with an error
	return serial
}

// hasSerial: Talos may show the drive's serial as shown: unchanged, or for IDE drives in the form of udev's ata_id.
func (d Disk) hasSerial(shown string) bool {
	serial := d.serial()
	ata, is := strings.CutPrefix(shown, "QEMU_HARDDISK_")
	return serial != "" && (shown == serial || is && ata == serial)
}

// wwids are the names that the kernel may give the drive (scsi_vpd_lun_id in scsi_lib.c): wwn=, or libata's.
func (d Disk) wwids() (out []string) {
	if wwn, ok := strings.CutPrefix(strings.ToLower(d.Option("wwn")), "0x"); ok {
		out = append(out, naa+wwn)
	}
	if serial := d.serial(); serial != "" && (strings.HasPrefix(d.Key, "sata") || strings.HasPrefix(d.Key, "ide")) {
		out = append(out, fmt.Sprintf("t10.ATA     %-40s%s", "QEMU HARDDISK", serial))
	}
	return out
}

const naa = "naa."

// contradicts: the machine's disk shows another name. None proves nothing: it may have been set after the start.
func (d Disk) contradicts(disk MachineDisk) bool {
	return strings.HasPrefix(disk.WWID, naa) && !slices.Contains(d.wwids(), disk.WWID) ||
		disk.Serial != "" && d.serial() != "" && !d.hasSerial(disk.Serial)
}

// Named returns the options with this serial and, if the bus has one, a WWN made of it (NAA 3: local) that shows it.
func (d Disk) Named(serial string) []string {
	d.Options = WithoutOption(d, "serial", "wwn").Options
	d.Options = append(d.Options, "serial="+serial)
	if !strings.HasPrefix(d.Key, "virtio") {
		d.Options = append(d.Options, "wwn="+WWN(serial))
	}
	return d.Options
}

func WWN(serial string) string {
	sum := sha256.Sum256([]byte(serial))
	return "0x3" + hex.EncodeToString(sum[:])[:15]
}
