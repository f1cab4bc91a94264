package cluster

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Every setting that a VM can have (qemu-server, PVE/QemuServer.pm, $confdesc, of PVE 8 and 9) is
// in one of the lists here, or is a drive. A setting in no list came with a later Proxmox: it is
// unknown whether a token can write it, and that must not show only after the old VM is deleted.
var (
	// RootOnly are the settings that only the user root@pam can change, not even its tokens: those
	// in no group in API2/Qemu.pm, check_vm_modify_config_perm. A token can delete a VM that has
	// one, but can't recreate it.
	RootOnly = []string{
		"affinity", "amd-sev", "arch", "args", "hookscript", "hugepages", "intel-tdx", "ivshmem", "keephugepages", "spice_enhancements",
	}
	// CarriedBuses are numbered keys that a new VM keeps unless RawDevice says otherwise.
	CarriedBuses = []string{"hostpci", "ipconfig", "net", "numa", "parallel", "serial", "usb", "virtiofs"}
)

// RawDevice recognises passed-through devices without a mapping, and device ROMs: only root@pam can
// set those, too.
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

// ForRoot returns a VM's settings that only root@pam can change, sorted: a new VM can't get them.
// Without arch a VM has its host's architecture (PVE/QemuServer/Helpers.pm, get_vm_arch), hostArch;
// so an arch that says the same is left out.
func (vm VM) ForRoot(hostArch string) []string {
	var keys []string
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

// RequireRemakeable refuses to recreate a VM that could be deleted but neither recreated nor
// restored. These settings may be newer than the plan.
func RequireRemakeable(vm VM, hostArch string) error {
	keys := vm.ForRoot(hostArch)
	if len(keys) == 0 {
		return nil
	}
	return fault.WithHint(fault.VMChanged.Refusedf("%s has %s, which only root@pam may set, so that a new VM could not have it: it is not deleted", vm, strings.Join(keys, ", ")),
		"reimage keeps such a VM. If its node does without (qm config %d shows what it is): qm set %[1]d --delete %s, as root, then run the same command again", vm.ID, strings.Join(keys, ","))
}

// MadeAnew lists what Proxmox itself sets in a VM that is recreated (API2/Qemu.pm, create_vm). A
// token can't write vmgenid, and no user can write meta.
func (vm VM) MadeAnew() []string {
	var out []string
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

// BootDevices returns the devices that a boot order names, in order. The old format ("cdn",
// legacy=cdn) names none (PVE/QemuServer.pm, $boot_fmt).
func BootDevices(boot string) []string {
	for part := range strings.SplitSeq(boot, ",") {
		if list, ok := strings.CutPrefix(part, "order="); ok {
			return strings.FieldsFunc(list, func(r rune) bool { return r == ';' || r == ' ' })
		}
	}
	return nil
}

// NeverCarried are the configuration keys that Proxmox sets itself on create, or that belong to the
// deleted VM. A token can't write vmgenid.
var NeverCarried = []string{"digest", "meta", "vmgenid", "lock", "parent", "snaptime", "runningmachine", "runningcpu", "running-nets-host-mtu", "vmstate"}

// OldSettings returns the configuration that a new VM takes over from an old one: all but the disks
// and what Proxmox sets itself.
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

// newCloudInit is the value that makes Proxmox create a cloud-init drive like d.
func newCloudInit(d Disk) string {
	return Disk{Volid: d.Storage() + ":cloudinit", Options: WithFormat(WithoutOption(d, "size", "media", "format"))}.Value()
}

// WithFormat returns the options of d, with the format that its volume's name shows. File storages
// have a default of their own, and cloud-init drives another (API2/Qemu.pm, create_disks); block
// storages show no format, and need none.
func WithFormat(d Disk) []string {
	for _, format := range []string{"raw", "qcow2", "vmdk"} {
		if strings.HasSuffix(d.Volid, "."+format) {
			return append(d.Options, "format="+format)
		}
	}
	return d.Options
}

// WithoutOption drops options: ones that only Proxmox sets, or that change.
func WithoutOption(d Disk, names ...string) Disk {
	d.Options = slices.DeleteFunc(slices.Clone(d.Options), func(o string) bool {
		name, _, _ := strings.Cut(o, "=")
		return slices.Contains(names, name)
	})
	return d
}

// CDKey picks the CD drive for the boot ISO: an empty one, else an existing one, else a free key.
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

// BootsFirst says whether the firmware tries that drive before all others.
func (vm VM) BootsFirst(key string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(vm.Config["boot"], "order="), ";")
	return first == key
}

var (
	pciAddress = regexp.MustCompile(`^([0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}(\.[0-9a-f])?$`)
	usbID      = regexp.MustCompile(`^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}$`)
)

// MapDevice returns the command that gives the VM a host device by a mapping, which a new VM can
// have too, in place of the device's address; "" if no command can. It restarts the node, since
// Proxmox does not plug the device into a running VM. A mapping must name all that the host shows
// of a PCI device, or the VM does not start (pve-guest-common, Mapping/PCI.pm, assert_valid); it
// can't replace several at once.
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
