package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// Every setting that a VM can have (qemu-server, PVE/QemuServer.pm, $confdesc,
// of PVE 8 and 9) is in one of the lists here, or is a drive. One that is in none
// came with a later Proxmox: whether a token may write it is not known, and that
// must not turn out when the old VM is gone.
var (
	// RootOnly are those that only the real root@pam user may write, not even its
	// tokens: those of no group in API2/Qemu.pm, check_vm_modify_config_perm. A VM
	// that has one can be deleted by a token, but not made again.
	RootOnly = []string{
		"affinity", "amd-sev", "arch", "args", "hookscript", "hugepages", "intel-tdx", "ivshmem", "keephugepages", "spice_enhancements",
	}
	// CarriedBuses are numbered, and carried unless rawDevice says otherwise.
	CarriedBuses = []string{"hostpci", "ipconfig", "net", "numa", "parallel", "serial", "usb", "virtiofs"}
)

// RawDevice tells passed-through devices that are not mapped, and device ROMs:
// those too are for root@pam alone.
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

// NumberedBus is "net" of "net0"; "" for a key that has no number, or is no bus.
func NumberedBus(key string) string {
	bus := strings.TrimRight(key, "0123456789")
	if bus == key || !slices.Contains(CarriedBuses, bus) {
		return ""
	}
	return bus
}

// ForRoot are a VM's settings that only root@pam may write, sorted: a new VM could
// not be given them. Without arch it is what its host is (PVE/QemuServer/Helpers.pm,
// get_vm_arch), which hostArch names, so that one is not needed where it says just that.
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

// RequireRemakeable refuses to recreate a VM that could be deleted but neither made
// again nor put back. Any of these settings may have come since the plan.
func RequireRemakeable(vm VM, hostArch string) error {
	keys := vm.ForRoot(hostArch)
	if len(keys) == 0 {
		return nil
	}
	return fault.WithHint(fault.VMChanged.Refusedf("%s has %s, which only root@pam may set, so that a new VM could not have it: it is not deleted", vm, strings.Join(keys, ", ")),
		"take that out of VM %d (qm set %d --delete %s, as root), then run the same command again; reimage keeps such a VM", vm.ID, vm.ID, strings.Join(keys, ","))
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
