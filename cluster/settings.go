package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Every setting that a VM can have (qemu-server, PVE/QemuServer.pm, $confdesc,
// of PVE 8 and 9) is in one of the lists here, or is a drive. One that is in none
// came with a later Proxmox: whether a token may write it is not known, and that
// must not turn out when the old VM is gone.
var (
	// rootOnly are those that only the real root@pam user may write, not even its
	// tokens: those of no group in API2/Qemu.pm, check_vm_modify_config_perm. A VM
	// that has one can be deleted by a token, but not made again.
	rootOnly = []string{
		"affinity", "amd-sev", "arch", "args", "hookscript", "hugepages", "intel-tdx", "ivshmem", "keephugepages", "spice_enhancements",
	}
	// carried are those that a new VM is given as the old one had them. Some take
	// privileges of their own: see Needs.config.
	carried = []string{
		"acpi", "agent", "allow-ksm", "audio0", "autostart", "balloon", "bios", "boot", "bootdisk", "citype", "ciupgrade", "ciuser", "cores",
		"cpu", "cpulimit", "cpuunits", "description", "freeze", "hotplug", "keyboard", "kvm", "localtime", "machine", "memory",
		"migrate_downtime", "migrate_speed", "name", "nameserver", "numa", "onboot", "ostype", "protection", "reboot", "rng0", "scsihw",
		"searchdomain", "shares", "smbios1", "smp", "sockets", "sshkeys", "startdate", "startup", "tablet", "tags", "tdf", "template", "vcpus",
		"vga", "vmstatestorage", "watchdog",
	}
	// carriedBuses are numbered, and carried unless rawDevice says otherwise.
	carriedBuses = []string{"hostpci", "ipconfig", "net", "numa", "parallel", "serial", "usb", "virtiofs"}
	// hidden are those whose value says little: what they name is elsewhere.
	hidden = []string{"cicustom", "cipassword"}
)

// rawDevice tells passed-through devices that are not mapped, and device ROMs:
// those too are for root@pam alone.
func rawDevice(key, value string) bool {
	options := Disk{Options: strings.Split(value, ",")}
	switch bus := numberedBus(key); bus {
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

// numberedBus is "net" of "net0"; "" for a key that has no number, or is no bus.
func numberedBus(key string) string {
	bus := strings.TrimRight(key, "0123456789")
	if bus == key || !slices.Contains(carriedBuses, bus) {
		return ""
	}
	return bus
}

// forRoot are a VM's settings that only root@pam may write, sorted: a new VM could
// not be given them. Without arch it is what its host is (PVE/QemuServer/Helpers.pm,
// get_vm_arch), which hostArch names, so that one is not needed where it says just that.
func (vm VM) forRoot(hostArch string) []string {
	var keys []string
	for key, value := range vm.Config {
		switch {
		case key == "arch" && value == hostArch:
		case slices.Contains(rootOnly, key) || rawDevice(key, value):
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// RequireRemakeable refuses to recreate a VM that could be deleted but neither made
// again nor put back. Any of these settings may have come since the plan.
func RequireRemakeable(vm VM, hostArch string) error {
	keys := vm.forRoot(hostArch)
	if len(keys) == 0 {
		return nil
	}
	return fault.WithHint(fault.VMChanged.Refusedf("%s has %s, which only root@pam may set, so that a new VM could not have it: it is not deleted", vm, strings.Join(keys, ", ")),
		"take that out of VM %d (qm set %d --delete %s, as root), then run the same command again; reimage keeps such a VM", vm.ID, vm.ID, strings.Join(keys, ","))
}

// spared are settings without which a Talos machine is the same: where one is in the
// way it can be taken out by a command. Who takes out args or a passed-through device
// has another machine.
var spared = []string{"affinity", "cipassword", "hookscript"}

// unwritable are settings and drives that a new VM could not be given.
func (c Candidate) unwritable() []Obstacle {
	out := c.rawDevices()
	add := func(key, format string, args ...any) {
		o := Obstacle{Text: fmt.Sprintf(format, args...)}
		if o.Command = c.VM.mapDevice(key, c.VM.Config[key]); slices.Contains(spared, key) {
			o.Command = fmt.Sprintf("qm set %d --delete %s", c.VM.ID, key)
		}
		out = append(out, o)
	}
	for _, key := range c.VM.forRoot(c.Found.Ties.HostArch) {
		add(key, "its setting %s can only be written by root@pam: use a resource mapping where there is one, or reimage", key)
	}
	for key, value := range c.VM.Config {
		switch {
		case slices.Contains(rootOnly, key) || rawDevice(key, value): // said above
		case !IsDiskKey(key) && numberedBus(key) == "" && !slices.Contains(carried, key) && !slices.Contains(hidden, key) && !slices.Contains(NeverCarried, key):
			add(key, "its setting %s is none that recast knows, so whether a new VM can be given it can't be told: remove it, or use reimage", key)
		}
	}
	out = append(out, c.customised()...)
	if c.VM.Config["cipassword"] != "" {
		add("cipassword", "the VM has cipassword, which Proxmox shows to nobody: remove it, or use reimage")
	}
	slices.SortFunc(out, func(a, b Obstacle) int { return strings.Compare(a.Text, b.Text) })
	return out
}

// customised are the parts of cicustom with which a new VM might not start, or not be
// where the old one was: without its files Proxmox starts none (PVE/QemuServer/Cloudinit.pm,
// read_cloudinit_snippets_file), and one of the network may say what the machine never did.
func (c Candidate) customised() []Obstacle {
	var out []Obstacle
	for part := range strings.SplitSeq(c.VM.Config["cicustom"], ",") {
		kind, volid, _ := strings.Cut(part, "=")
		storage, _, _ := strings.Cut(volid, ":")
		switch {
		case kind == "" || kind == "user": // none, or refused for that
		case kind == "network":
			out = append(out, Obstacle{Text: fmt.Sprintf("the VM has cicustom (%s), and what that says nobody sees: remove it, or use reimage", part)})
		case !slices.Contains(c.Found.Ties.Snippets, volid):
			out = append(out, Obstacle{
				Text: fmt.Sprintf("the VM has cicustom (%s), without which file a new VM would not start, and the token does not see it: grant it Datastore.Allocate on /storage/%s, "+
					"or remove that part, with which Talos' platform metadata goes; or use reimage", part, storage),
				Command: c.keepCustom(),
			})
		}
	}
	return out
}

// keepCustom is the command that leaves of cicustom what a new VM can have, and the
// network, which may be how the machine is reached.
func (c Candidate) keepCustom() string {
	gone := []string{"user"}
	for part := range strings.SplitSeq(c.VM.Config["cicustom"], ",") {
		if kind, volid, _ := strings.Cut(part, "="); kind != "network" && !slices.Contains(c.Found.Ties.Snippets, volid) {
			gone = append(gone, kind)
		}
	}
	return c.VM.withoutCustom(gone...)
}

// MadeAnew is what Proxmox itself gives a VM that is made again (API2/Qemu.pm,
// create_vm). A token can't write vmgenid, nobody can write meta.
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

// BootDevices are those that a boot order names, in order. The old kind ("cdn",
// legacy=cdn) names none (PVE/QemuServer.pm, $boot_fmt).
func BootDevices(boot string) []string {
	for part := range strings.SplitSeq(boot, ",") {
		if list, ok := strings.CutPrefix(part, "order="); ok {
			return strings.FieldsFunc(list, func(r rune) bool { return r == ';' || r == ' ' })
		}
	}
	return nil
}

// missingBoot are devices in the boot order that the VM has not. Proxmox takes
// such an order with a create, but with no change ("invalid bootorder",
// API2/Qemu.pm, update_vm_api): it could not be set again.
func (c Candidate) missingBoot() []Obstacle {
	var out []Obstacle
	order := BootDevices(c.VM.Config["boot"])
	have := slices.DeleteFunc(slices.Clone(order), func(key string) bool { return c.VM.Config[key] == "" })
	for _, key := range order {
		if _, there := c.VM.Config[key]; !there {
			out = append(out, Obstacle{
				Text:    fmt.Sprintf("its boot order names %s, which the VM has not: set the boot order anew", key),
				Command: fmt.Sprintf("qm set %d --boot %s", c.VM.ID, words.Quote("order="+strings.Join(have, ";"))),
			})
		}
	}
	return out
}
