package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// rootOnly are the settings that only the real root@pam user may write, not
// even its tokens (qemu-server, API2/Qemu.pm): a VM that has one can be deleted
// by a token, but not made again.
var rootOnly = []string{"args", "affinity", "hookscript"}

// rawDevice tells passed-through devices that are not mapped: those too are for root@pam alone.
func rawDevice(key, value string) bool {
	for _, bus := range []string{"hostpci", "usb", "serial", "parallel"} {
		number, ok := strings.CutPrefix(key, bus)
		if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
			continue
		}
		switch bus {
		case "serial":
			return value != "socket"
		case "usb":
			return !strings.Contains(value, "mapping=") && !strings.HasPrefix(value, "spice")
		default:
			return !strings.Contains(value, "mapping=")
		}
	}
	return false
}

// refusals says why a node can't be recreated, each with what would lift it;
// none means that it can. It reads only what was observed.
func refusals(w Wanted, f Found, o Observation, system Disk) []string {
	if f.Machine.ControlPlane {
		return []string{"it is a control plane: this version recreates workers only"}
	}
	out := refuseVM(*f.VM)
	for _, what := range f.Bound {
		out = append(out, "the VM has "+what+", which a delete would drop or be refused for: this version can't carry that over")
	}
	disks, err := f.VM.Disks()
	if err != nil {
		return append(out, err.Error())
	}
	out = append(out, refuseDisks(*f.VM, disks, o.VMs)...)
	return append(out, refuseVolumes(f, disks, system)...)
}

func refuseVM(vm VM) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if vm.Template {
		add("the VM is a template")
	}
	if vm.Lock != "" {
		add("the VM is locked (%s): wait until that task has ended", vm.Lock)
	}
	if vm.HA {
		add("the VM is managed by Proxmox HA, which this version does not take it out of: remove the HA resource first")
	}
	if vm.Config["parent"] != "" {
		add("the VM has snapshots (%s): delete them first", vm.Config["parent"])
	}
	if vm.Config["protection"] == "1" {
		add("the VM is protected: unset its protection first")
	}
	if len(vm.Pending) > 0 {
		add("the VM has pending changes (%s): restart it or revert them", strings.Join(vm.Pending, ", "))
	}
	for _, key := range []string{"cicustom", "cipassword"} {
		if vm.Config[key] != "" {
			add("the VM has %s, which can't be carried over safely", key)
		}
	}
	if strings.Contains(vm.Config["smbios1"], "ds=nocloud") {
		add("its SMBIOS serial points Talos to a configuration of its own (ds=nocloud)")
	}
	for key, value := range vm.Config {
		if slices.Contains(rootOnly, key) || rawDevice(key, value) {
			add("its setting %s can only be written by root@pam: use a resource mapping, or recreate it by hand", key)
		}
	}
	slices.Sort(out)
	return out
}

func refuseDisks(vm VM, disks []Disk, all []VM) []string {
	var out []string
	for _, d := range disks {
		switch {
		case d.CDROM && !d.CloudInit():
			continue
		case strings.HasPrefix(d.Volid, "/"):
			out = append(out, fmt.Sprintf("%s is a device of the host (%s): only root@pam can attach it", d.Key, d.Volid))
			continue
		case d.Owner != vm.ID:
			out = append(out, fmt.Sprintf("%s (%s) belongs to VM %d: disks of other VMs are not served by this version", d.Key, d.Volid, d.Owner))
		}
		if users := referencedBy(d.Volid, all); len(users) > 1 {
			out = append(out, fmt.Sprintf("%s (%s) is used in more than one place: %s", d.Key, d.Volid, strings.Join(users, ", ")))
		}
	}
	return out
}

// referencedBy lists every place in the whole Proxmox cluster that names a volume.
func referencedBy(volid string, vms []VM) []string {
	var out []string
	for _, vm := range vms {
		for key, value := range vm.Config {
			if d, err := ParseDisk(key, value); err == nil && d.Volid == volid {
				out = append(out, fmt.Sprintf("%s of VM %d", key, vm.ID))
			}
		}
	}
	slices.Sort(out)
	return out
}

// talosLabels are the partition labels that Talos takes for its own wherever they are.
var talosLabels = []string{"EFI", "BIOS", "BOOT", "META", "STATE", "EPHEMERAL"}

func refuseVolumes(f Found, disks []Disk, system Disk) []string {
	var out []string
	for _, v := range f.Machine.Volumes {
		onSystem := v.Disk == f.Machine.SystemDisk
		switch {
		case onSystem && (strings.HasPrefix(v.Label, "u-") || strings.HasPrefix(v.Label, "r-") || strings.HasPrefix(v.Label, "x-")):
			out = append(out, fmt.Sprintf("the system disk holds the volume %s, which would be lost", v.Label))
		case !onSystem && v.Label == "META":
			out = append(out, fmt.Sprintf("%s carries a META partition: the boot ISO would take Talos for installed and halt", v.Disk))
		case !onSystem && v.Label != "EPHEMERAL" && slices.Contains(talosLabels, v.Label):
			out = append(out, fmt.Sprintf("%s carries a stale %s partition of Talos", v.Disk, v.Label))
		}
	}
	for _, d := range disks {
		if d.Bootable() && d.Key != system.Key && d.Option("serial") == "" {
			out = append(out, fmt.Sprintf("persistent disk %s has no serial, so the new VM could not prove that it got it back: add serial= to it", d.Key))
		}
	}
	return out
}
