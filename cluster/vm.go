package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// VMIDRange is the range of numbers that a recast.yaml gives recast: proxmox.vmids.
type VMIDRange struct{ First, Last VMID }

func (r VMIDRange) String() string {
	if r == (VMIDRange{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

func (r VMIDRange) Contains(id VMID) bool { return r.First <= id && id <= r.Last }

// WithoutCustom returns the command that removes parts from cicustom and keeps the others.
func (vm VM) WithoutCustom(parts ...string) string {
	rest := slices.DeleteFunc(strings.Split(vm.Config["cicustom"], ","), func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		return slices.Contains(parts, name)
	})
	if len(rest) == 0 {
		return fmt.Sprintf("qm set %d --delete cicustom", vm.ID)
	}
	return fmt.Sprintf("qm set %d --cicustom %s", vm.ID, words.Quote(strings.Join(rest, ",")))
}

func ArgName(arg string) string { name, _, _ := strings.Cut(arg, "="); return name }

// Arch is the architecture that a VM's configuration names, as images name it.
func (vm VM) Arch() string {
	arch := vm.Config["arch"]
	return cmp.Or(map[string]string{"x86_64": "amd64", "aarch64": "arm64"}[arch], arch)
}

// FixedAddress returns the cloud-init setting that gives a VM an address without DHCP, if it has such a drive; else "".
func (vm VM) FixedAddress() string {
	disks, _ := vm.Disks() // an unreadable drive is no cloud-init drive
	if !slices.ContainsFunc(disks, Disk.CloudInit) {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		value := vm.Config[key]
		for option := range strings.SplitSeq(value, ",") {
			name, of, _ := strings.Cut(option, "=")
			switch {
			case strings.HasPrefix(key, "ipconfig") && name == "ip" && of != "dhcp",
				strings.HasPrefix(key, "ipconfig") && name == "ip6" && of != "dhcp" && of != "auto",
				key == "cicustom" && name == "network":
				return key + ": " + value
			}
		}
	}
	return ""
}

// Secured says whether the firmware is known to verify what it boots.
func (m RunningSystem) Secured() bool { return m.SecureBoot != nil && *m.SecureBoot }

// LacksSecureBoot says why a boot ISO can't enrol its keys (get_ovmf_files in PVE/QemuServer/OVMF.pm); "": it can.
func (vm VM) LacksSecureBoot() string {
	efi, err := ParseDisk("efidisk0", vm.Config["efidisk0"])
	switch {
	case vm.Config["bios"] != "ovmf":
		return "the VM has SeaBIOS"
	case err != nil:
		return "the VM has no efidisk0"
	case efi.Option("efitype") != "4m":
		return "its efidisk0 has another efitype"
	case efi.Flag("pre-enrolled-keys"):
		return "its efidisk0 has pre-enrolled-keys=1"
	}
	return ""
}

const (
	RunMark = "recast: run="
	// MaxDescription is Proxmox's limit for a VM's description, in characters.
	MaxDescription = 8192
)

// splitMark splits a VM's description into the user's text, and what recast's mark line says: "run build=ID".
func splitMark(description string) (own, mark string) {
	var kept []string
	for line := range strings.SplitSeq(strings.TrimRight(description, "\n"), "\n") {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), RunMark); ok {
			mark = rest
			continue
		}
		kept = append(kept, line)
	}
	return strings.TrimRight(strings.Join(kept, "\n"), "\n"), mark
}

// OwnDescription is the VM's description without recast's mark.
func (vm VM) OwnDescription() string {
	own, _ := splitMark(vm.Config["description"])
	return own
}

// Redescribed returns the description own with the VM's present mark.
func (vm VM) Redescribed(own string) string {
	if _, mark := splitMark(vm.Config["description"]); mark != "" {
		return strings.TrimLeft(own+"\n"+RunMark+mark, "\n")
	}
	return own
}

// MadeBy returns the run that created the VM, "" if no run of recast did.
func (vm VM) MadeBy() string {
	_, mark := splitMark(vm.Config["description"])
	run, _, _ := strings.Cut(mark, " ")
	return run
}

// MadeFrom returns the ID of the build from which a run of recast made the VM, "" if no run did.
func (vm VM) MadeFrom() string {
	_, mark := splitMark(vm.Config["description"])
	_, build, _ := strings.Cut(mark, " build=")
	build, _, _ = strings.Cut(build, " ")
	return build
}

// Forming: the VM is being created, and has only its lock yet (qemu-server, API2/Qemu.pm, create_and_lock_config).
func Forming(vm VM) bool { return vm.Lock == "create" && vm.Config["description"] == "" }

// HalfMade is the error for a VM that stays Forming. Only root can remove its lock.
func HalfMade(vm VM) error {
	err := fault.ClaimHeld.Refusedf("%s is locked by its creation (create), and nothing else is known of it", vm)
	if !vm.empty() {
		return fault.WithHint(err, "%s. qm config %d shows what it has: recast may not delete that VM, so it is another one with its number; see whose it is", vm.tasks(), vm.ID)
	}
	return fault.WithHint(err, "%s. Where none does any more, it was killed: remove what it left there, as root, with "+
		"qm unlock %d && qm destroy %[2]d, then run the same command again", vm.tasks(), vm.ID)
}

func (vm VM) tasks() string {
	return fmt.Sprintf("pvesh get /nodes/%s/tasks --source active --vmid %d lists its tasks that still run", vm.Host, vm.ID)
}

// Unlock says what to do about a lock that no task removes.
func (vm VM) Unlock() string {
	if vm.Lock == "suspended" || vm.Lock == "suspending" {
		return fmt.Sprintf("it is suspended: qm resume %d continues it; qm unlock %[1]d discards the saved state", vm.ID)
	}
	return fmt.Sprintf("%s; where none does, its task has died, and qm unlock %d on %s takes the lock away", vm.tasks(), vm.ID, vm.Host)
}

// Bare says whether the VM does not run and has nothing that a delete would free: no drive, snapshot or saved state.
func (vm VM) Bare() bool { return !vm.Running && vm.empty() }

// empty is Bare whatever the power state: qm destroy refuses a running VM (qemu-server, API2/Qemu.pm, destroy_vm).
func (vm VM) empty() bool {
	for key := range vm.Config {
		if IsDiskKey(key) || key == "vmstate" || key == "parent" {
			return false
		}
	}
	return !vm.Template
}

// Locked says whether a task that ends by itself holds the VM.
func Locked(vm VM) bool { return slices.Contains(passing, vm.Lock) }

// passing are the locks that end with the task that set them (qemu-server, PVE/QemuServer.pm, $confdesc: lock).
var passing = []string{"backup", "clone", "migrate", "rollback", "snapshot", "snapshot-delete"}

// SwitchedOff adds to the error of reading a machine that its VM is off unintentionally.
func SwitchedOff(vm VMState, err error) error {
	return fault.WithHint(fmt.Errorf("%s is switched off: %w", vm, err), "start %s in Proxmox", vm)
}

func UsersOf(volid string, vm VM) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(vm.Config)), func(key string) bool {
		d, err := ParseDisk(key, vm.Config[key])
		return err != nil || d.Volid != volid
	})
}

func DrivesOf(vm VM) string {
	disks, err := vm.Disks()
	if err != nil {
		return "drives that can't be read"
	}
	disks = slices.DeleteFunc(disks, func(d Disk) bool { return d.CDROM })
	have := Each(disks, func(d Disk) string { return d.Key + " (" + d.Volid + ")" })
	if len(have) == 0 {
		return "no disk"
	}
	return strings.Join(have, ", ")
}

func ParkingName(node string) string { return "recast-parking-" + node }

// RecordMark begins the line of a parking VM's Notes that has its record.
const RecordMark = "recast-record: "

// IsParking reports whether the VM says, in its Notes or by its name, that it is a parking VM.
func (vm VM) IsParking() bool {
	return strings.Contains(vm.Config["description"], RecordMark) || strings.HasPrefix(vm.Name, ParkingName(""))
}

func (j ReplicationJob) Create() string {
	command := fmt.Sprintf("pvesr create-local-job %s %s", j.ID, words.OrNone(j.Target))
	if j.Schedule != "" {
		command += " --schedule " + words.Quote(j.Schedule)
	}
	if j.Rate != "" {
		command += " --rate " + j.Rate
	}
	if j.Disabled {
		command += " --disable 1"
	}
	return command
}

// Shape is what recast.yaml says about a node's VM, in Proxmox' own words. Other settings stay as they are found.
type Shape struct {
	Class     string            // its name in the config; "": only the node's own settings
	Addr      netip.Addr        // that the node's machine has; invalid: there is none, or it is unknown
	Settings  map[string]string // whole values: "memory": "8192", "tags": "prod;talos"
	Devices   map[string]string // of network cards and host devices, the options given: "net0": "bridge=vmbr1,tag=20"
	Disks     []ShapeDisk
	Pool      string            // "": as found
	HA        map[string]string // "state", "group", …; nil: as found
	Host      string            // "": as found
	CloudInit string            // the storage of a new VM's cloud-init drive; "": it gets none
}

// ShapeDisk is one disk of a Shape.
type ShapeDisk struct {
	Key     string // "scsi1"
	Storage string // "": as found; then the disk can't be a new one
	SizeGiB int    // 0: as found
	Options []string
}

func (s Shape) IsEmpty() bool {
	return len(s.Settings)+len(s.Devices)+len(s.Disks)+len(s.HA) == 0 && s.Pool == "" && s.Host == ""
}

// Every setting that a VM can have (qemu-server, PVE/QemuServer.pm, $confdesc, of PVE 8 and 9) is
// in one of the lists here, or is a drive. A setting in no list came with a later Proxmox: it is
// unknown whether a token can write it, and that must not show only after the old VM is deleted.
var (
	// RootOnly are the settings that only the user root@pam can change, not even its tokens: those in no group in
	// API2/Qemu.pm, check_vm_modify_config_perm. A token can delete a VM that has one, but can't recreate it.
	RootOnly = []string{
		"affinity", "amd-sev", "arch", "args", "hookscript", "hugepages", "intel-tdx", "ivshmem", "keephugepages", "spice_enhancements",
	}
	// CarriedBuses are numbered keys that a new VM keeps unless RawDevice says otherwise.
	CarriedBuses = []string{"hostpci", "ipconfig", "net", "numa", "parallel", "serial", "usb", "virtiofs"}
)

// RawDevice recognises passed-through devices without a mapping, and device ROMs: only root@pam can set those, too.
func RawDevice(key, value string) bool {
	options := Disk{Options: strings.Split(value, ",")}
	switch bus := NumberedBus(key); bus {
	case "serial":
		return value != "socket"
	case "usb":
		return options.Option("mapping") == "" && options.Option("host") != "spice" && options.Options[0] != "spice"
	case "hostpci":
		return options.Option("mapping") == "" || options.Option("romfile") != ""
	case "parallel":
		return true
	}
	return false
}

// NumberedBus is "net" of "net0"; "" for a key without a number, or of no bus.
func NumberedBus(key string) string {
	bus := strings.TrimRight(key, "0123456789")
	if bus == key || !slices.Contains(CarriedBuses, bus) {
		return ""
	}
	return bus
}

// ForRoot returns a VM's settings that only root@pam can change, sorted: a new VM can't get them. It leaves out an
// arch equal to hostArch: a VM without arch has its host's architecture (PVE/QemuServer/Helpers.pm, get_vm_arch).
func (vm VM) ForRoot(hostArch string) (keys []string) {
	for key, value := range vm.Config {
		switch {
		case key == "arch" && value == hostArch:
		case slices.Contains(RootOnly, key) || RawDevice(key, value):
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// RequireRemakeable refuses to recreate a VM that could be deleted but not made again. It may be newer than the plan.
func RequireRemakeable(vm VM, hostArch string) error {
	keys := vm.ForRoot(hostArch)
	if len(keys) == 0 {
		return nil
	}
	return fault.WithHint(fault.VMChanged.Refusedf("%s has %s, which only root@pam may set, so that a new VM could not have it: it is not deleted", vm, strings.Join(keys, ", ")),
		"reimage keeps such a VM. If its node does not need it (qm config %d shows what it is): qm set %[1]d --delete %s, as root, then run the same command again", vm.ID, strings.Join(keys, ","))
}

// MadeAnew lists what Proxmox itself sets in a recreated VM (API2/Qemu.pm, create_vm) and a token can't write.
func (vm VM) MadeAnew() (out []string) {
	switch vm.Config["vmgenid"] {
	case "":
	case "0":
		out = append(out, "vmgenid (which is switched off now)")
	default:
		out = append(out, "vmgenid")
	}
	if vm.Config["meta"] != "" {
		out = append(out, "meta")
	}
	if arch := vm.Config["arch"]; arch != "" {
		out = append(out, fmt.Sprintf("arch (left out: its host is %s)", arch))
	}
	return out
}

// BootDevices returns a boot order's devices. The old format ("cdn") names none (PVE/QemuServer.pm, $boot_fmt).
func BootDevices(boot string) []string {
	for part := range strings.SplitSeq(boot, ",") {
		if list, ok := strings.CutPrefix(part, "order="); ok {
			return strings.FieldsFunc(list, func(r rune) bool { return r == ';' || r == ' ' })
		}
	}
	return nil
}

// NeverCarried are the keys that Proxmox sets itself on create, or that belong to the deleted VM.
var NeverCarried = []string{"digest", "meta", "vmgenid", "lock", "parent", "snaptime", "runningmachine", "runningcpu", "running-nets-host-mtu", "vmstate"}

// OldSettings returns what a new VM takes over from an old one: all but the disks and what Proxmox sets itself.
func OldSettings(vm VM) map[string]string {
	config := map[string]string{}
	for key, value := range vm.Config {
		switch d, err := ParseDisk(key, value); {
		case slices.Contains(NeverCarried, key), err == nil && !d.CDROM, err != nil && IsDiskKey(key), key == "arch": // see ForRoot
		case err == nil && d.CloudInit():
			config[key] = newCloudInit(d)
		case err == nil:
			config[key] = WithoutOption(d, "size").Value()
		default:
			config[key] = value
		}
	}
	if vm.Pool != "" {
		config["pool"] = vm.Pool
	}
	return config
}

func newCloudInit(d Disk) string {
	return Disk{Volid: d.Storage() + ":cloudinit", Options: WithFormat(WithoutOption(d, "size", "media", "format"))}.Value()
}

// WithFormat adds the format in the volume's name: file storages have other defaults (API2/Qemu.pm, create_disks).
func WithFormat(d Disk) []string {
	for _, format := range []string{"raw", "qcow2", "vmdk"} {
		if strings.HasSuffix(d.Volid, "."+format) {
			return append(d.Options, "format="+format)
		}
	}
	return d.Options
}

// WithoutOption returns d without these options: options that only Proxmox sets, or that change.
func WithoutOption(d Disk, names ...string) Disk {
	d.Options = slices.DeleteFunc(slices.Clone(d.Options), func(o string) bool {
		name, _, _ := strings.Cut(o, "=")
		return slices.Contains(names, name)
	})
	return d
}

// CDKey picks the CD drive for the boot ISO: an empty drive, else an existing one, else a free key.
func CDKey(config map[string]string, disks []Disk) string {
	drive := ""
	for _, d := range disks {
		switch {
		case !d.CDROM || d.CloudInit():
		case d.Volid == "none":
			return d.Key
		case drive == "":
			drive = d.Key
		}
	}
	if drive != "" {
		return drive
	}
	for _, key := range []string{"ide2", "ide0", "ide1", "ide3", "sata5", "sata4"} {
		if _, taken := config[key]; !taken {
			return key
		}
	}
	return "sata3"
}

func (vm VM) BootsFirst(key string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(vm.Config["boot"], "order="), ";")
	return first == key
}

var (
	pciAddress = regexp.MustCompile(`^([0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}(\.[0-9a-f])?$`)
	usbID      = regexp.MustCompile(`^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}$`)
)

// MapDevice returns the command that gives the VM a host device by a mapping in place of the device's address; "" if
// no command can. A new VM can have the mapping, too. The command restarts the node, since Proxmox does not plug the
// device into a running VM. A mapping must name all that the host shows of a PCI device, or the VM does not start
// (pve-guest-common, Mapping/PCI.pm, assert_valid). It can't replace several devices at once.
func (vm VM) MapDevice(key, value string) string {
	options := strings.Split(value, ",")
	host, rest := "", []string{}
	for i, o := range options {
		name, of, named := strings.Cut(o, "=")
		switch {
		case !named && i == 0:
			host = o
		case name == "host":
			host = of
		case name == "romfile": // only root@pam can set that, too
			return ""
		default:
			rest = append(rest, o)
		}
	}
	name := fmt.Sprintf("vm%d-%s", vm.ID, key)
	device, kind := "", NumberedBus(key)
	switch {
	case kind == "hostpci" && pciAddress.MatchString(host):
		if strings.Count(host, ":") == 1 {
			host = "0000:" + host
		}
		at := host
		if !strings.Contains(at, ".") {
			at += ".0"
		}
		kind, device = "pci", fmt.Sprintf(`"node=%s,path=%s,$(cd /sys/bus/pci/devices/%s && printf id=%%s:%%s,subsystem-id=%%s:%%s,iommugroup=%%s `+
			`$(cut -c3- vendor device subsystem_vendor subsystem_device) $(basename $(readlink iommu_group)))"`, vm.Host, host, at)
	case kind == "usb" && usbID.MatchString(host):
		device = fmt.Sprintf("node=%s,id=%s", vm.Host, host)
	default:
		return ""
	}
	fresh := strings.Join(slices.Concat([]string{"mapping=" + name}, rest), ",")
	return fmt.Sprintf("pvesh create /cluster/mapping/%s --id %s --map %s && qm set %d --%s %s && qm reboot %d", kind, name, device, vm.ID, key, words.Quote(fresh), vm.ID)
}

// FirewallConfig is a VM's /etc/pve/firewall/VMID.fw, which Proxmox deletes with the VM; zero: it has none.
type FirewallConfig struct {
	Options FirewallEntry   // "enable", "policy_in"
	Aliases []FirewallEntry // "name", "cidr", "comment"; by name
	Sets    []FirewallSet   // IP sets; by name
	Rules   []FirewallEntry // "type", "action", "dport" …; the first that matches counts
}

// FirewallEntry is one object of a firewall: texts by Proxmox' names for its fields, without those that have none.
type FirewallEntry map[string]string

// FirewallSet is an IP set.
type FirewallSet struct {
	Name, Comment string
	Members       []FirewallEntry // "cidr", "nomatch", "comment"; by address
}

// settable are the options that the API accepts; an editor may write others (PVE/Firewall.pm, parse_vmfw_option).
var settable = []string{"dhcp", "enable", "ipfilter", "log_level_in", "log_level_out", "macfilter", "ndp", "policy_in", "policy_out", "radv"}

// Unsettable are the options that can't be given to another VM.
func (c FirewallConfig) Unsettable() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.Options)), func(name string) bool { return slices.Contains(settable, name) })
}

func (c FirewallConfig) Empty() bool {
	return len(c.Options) == 0 && len(c.Aliases) == 0 && len(c.Sets) == 0 && len(c.Rules) == 0
}

func (c FirewallConfig) String() string {
	var parts []string
	for _, part := range []struct {
		n         int
		one, many string
	}{
		{len(c.Rules), "rule", "rules"},
		{len(c.Options), "option", "options"},
		{len(c.Aliases), "alias", "aliases"},
		{len(c.Sets), "IP set", "IP sets"},
	} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, map[bool]string{true: part.one, false: part.many}[part.n == 1]))
		}
	}
	return strings.Join(parts, ", ")
}

// Sum identifies a firewall: a SHA-256 in hex; "" if there is none.
func (c FirewallConfig) Sum() string {
	if c.Empty() {
		return ""
	}
	b, err := json.Marshal(c) // with the keys of maps sorted
	if err != nil {
		panic(err) // all of it is text
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// HostsAway: VMs on unavailable hosts were not read. Only a host has their configurations; others know the VMIDs.
type HostsAway struct {
	Hosts []AwayHost // by name
	VMs   []VM       // on these hosts, by VMID, without configuration
}

// AwayHost is a Proxmox host that does not answer.
type AwayHost struct {
	Name string
	Why  string // IsOffline, "does not answer: …"
}

// IsOffline describes a host outside the Proxmox cluster's quorum: nothing can be written there.
const IsOffline = "is offline"

func (h AwayHost) Key() string { return fmt.Sprintf("%s %t", h.Name, h.Why == IsOffline) }

func (e *HostsAway) Error() string {
	return fmt.Sprintf("%s, so %s can't be read", e.Who(), Numbers(e.VMs))
}

func (e *HostsAway) Who() string {
	parts := Each(e.Hosts, func(h AwayHost) string { return fmt.Sprintf("Proxmox host %s %s", h.Name, h.Why) })
	return strings.Join(parts, " and ")
}

func (e *HostsAway) Names() string {
	return strings.Join(Each(e.Hosts, func(h AwayHost) string { return h.Name }), " and ")
}

func (e *HostsAway) VM(id VMID) (VM, bool) {
	if e == nil {
		return VM{}, false
	}
	return Find(e.VMs, func(vm VM) bool { return vm.ID == id })
}

func (e *HostsAway) Without(ids []VMID) *HostsAway {
	left := Where(e.VMs, func(vm VM) bool { return !slices.Contains(ids, vm.ID) })
	return &HostsAway{VMs: left, Hosts: Where(e.Hosts, func(h AwayHost) bool {
		return slices.ContainsFunc(left, func(vm VM) bool { return vm.Host == h.Name })
	})}
}

// Hinted returns the error with a hint for each host.
func (e *HostsAway) Hinted() error {
	err := error(e)
	for _, h := range e.Hosts {
		err = fault.WithHint(fault.HostAway.Of(err), "see whether %s is up, and its pveproxy (pvecm status on another Proxmox node tells); then run the same command again", h.Name)
	}
	return err
}

func Numbers(vms []VM) string {
	ids := Each(vms, func(vm VM) string { return fmt.Sprint(vm.ID) })
	if len(ids) == 1 {
		return "VM " + ids[0]
	}
	return "VMs " + strings.Join(ids, ", ")
}

// OnOtherHosts says where the VM and the parking VM of an unfinished replacement are if either was migrated since, and
// how to move it back; "" if both are on the host where the replacement began. vm is nil while the VM is deleted.
// Proxmox moves a disk only between VMs of one host, on shared storages too (qemu-server, API2/Qemu.pm, move_vm_disk).
func OnOtherHosts(vm *VM, park VM, begun string, away *HostsAway, id VMID) string {
	if there, known := away.VM(id); vm == nil && known {
		return fmt.Sprintf("VM %d is on %s, and %s: bring %s back first; nothing was destroyed", id, there.Host, away.Who(), there.Host)
	}
	of := Where([]*VM{vm, &park}, func(m *VM) bool { return m != nil && m.Host != begun })
	moved := Each(of, func(m *VM) VM { return *m })
	if len(moved) == 0 {
		return ""
	}
	var is, back []string
	for _, m := range moved {
		is = append(is, m.String())
		back = append(back, fmt.Sprintf("on %s: %s", m.Host, MigrateCommand(m, begun)))
	}
	return fmt.Sprintf("it was begun on %s, and %s was moved since: disks can be handed over on one host only. Bring it back (%s), then run the same command again; nothing was destroyed",
		begun, strings.Join(is, " and "), strings.Join(back, "; "))
}

// MigrateCommand migrates a VM. A stopped one takes its local disks along (qemu-server, PVE/QemuMigrate.pm).
func MigrateCommand(vm VM, to string) string {
	command := fmt.Sprintf("qm migrate %d %s", vm.ID, to)
	if vm.Running {
		command += " --online --with-local-disks"
	}
	return command
}

// RequireQuorum comes before every destructive call: without quorum Proxmox deletes disks first and fails afterwards.
func RequireQuorum(ctx context.Context, px HostReader) error {
	quorate, err := px.Quorate(ctx)
	if err != nil {
		return fmt.Errorf("ask Proxmox for quorum: %w", err)
	}
	if !quorate {
		return fault.WithHint(fault.NoQuorum.Refusedf("the Proxmox cluster has no quorum"), "look at pvecm status on a Proxmox node, then run the same command again")
	}
	return nil
}

// ForeignBridges lists the networks of a VM other than the hosts' own bridges.
func ForeignBridges(vm VM) (out []string) {
	foreign := Where(vm.NICs(), func(n NIC) bool { return !LocalBridge(n.Bridge) })
	return Each(foreign, func(n NIC) string { return n.Bridge })
}

// NIC is a network card of a VM that is connected to a bridge.
type NIC struct {
	Bridge, Tag string // Tag is the VLAN; "": none
	Filtered    bool   // Proxmox' firewall sees what it sends
}

// Network names what the card is connected to: "vmbr0", "vmbr0 with VLAN 20".
func (n NIC) Network() string {
	if n.Tag == "" {
		return n.Bridge
	}
	return n.Bridge + " with VLAN " + n.Tag
}

// NICs are the VM's connected network cards, by key.
func (vm VM) NICs() (out []NIC) {
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		card := Disk{Options: strings.Split(vm.Config[key], ",")}
		if bridge := card.Option("bridge"); strings.TrimRight(key, "0123456789") == "net" && bridge != "" {
			out = append(out, NIC{bridge, card.Option("tag"), card.Flag("firewall")})
		}
	}
	return out
}

// NewToken returns the commands that create a user and its token, before any Grants.Lines.
func NewToken(token string) []string {
	user, name, _ := strings.Cut(token, "!")
	lines := []string{fmt.Sprintf("pveum user add %s", user), fmt.Sprintf("pveum user token add %s %s --privsep 1", user, name)}
	if strings.HasSuffix(user, "@pam") {
		return lines[1:] // a user of the host's system, for example root
	}
	return lines
}

// LocalBridge: the bridge is a host's own, and no VNet of an SDN zone, which the VM's configuration does not name.
func LocalBridge(bridge string) bool { return strings.HasPrefix(bridge, "vmbr") }

// ACLEntry is one entry of Proxmox' access control list.
type ACLEntry struct {
	Path, Kind, Who, Role string // Kind is "user", "group" or "token"
	Propagate             bool
}

func (e ACLEntry) Words() string { return fmt.Sprintf("%s of %s %s", e.Role, e.Kind, e.Who) }

func (e ACLEntry) Arguments() string {
	return fmt.Sprintf("%s --%ss %s --roles %s", e.Path, e.Kind, words.Quote(e.Who), words.Quote(e.Role))
}

// Propagates is the option for pveum acl modify, which propagates by default.
func (e ACLEntry) Propagates() string { return map[bool]string{false: " --propagate 0"}[e.Propagate] }

// Privileges are a token's at one path of Proxmox's access tree. The value: they also hold below.
type Privileges map[string]bool

// Standing has the privileges of a token and its user at a path of the access tree, from entries there or above.
type Standing struct {
	Token Privileges // no more than User has, if the token's privileges are separated
	User  Privileges
	// TokenEntry and UserEntry say who has an entry at that very path. Another role is added to an existing entry,
	// but a first entry replaces all privileges from above.
	TokenEntry, UserEntry bool
	Whole                 bool // User and the entries could be read
}
