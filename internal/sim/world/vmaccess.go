package world

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

func vmPath(id int) string { return "/vms/" + strconv.Itoa(id) }

// checkVM checks a privilege on a VM; if it is to be created in a pool, one on the pool suffices.
func (w *World) checkVM(user string, id int, pool, privilege string) error {
	err := w.check(user, vmPath(id), privilege)
	if err != nil && pool != "" && w.check(user, "/pool/"+pool, privilege) == nil {
		return nil
	}
	return err
}

// optionPrivilege is the privilege to change an option whatever its value; "" if only the
// real root@pam may.
func optionPrivilege(key string) string {
	switch optionName(key) {
	case "boot", "bootdisk", "vmstatestorage":
		return "VM.Config.Disk"
	case "cores", "cpu", "cpulimit", "cpuunits", "numa", "numa#", "smp", "sockets", "vcpus":
		return "VM.Config.CPU"
	case "memory", "balloon", "shares", "allow-ksm":
		return "VM.Config.Memory"
	case "acpi", "audio", "hotplug", "kvm", "machine", "rng", "scsihw", "smbios1", "tablet", "vga", "watchdog":
		return "VM.Config.HWType"
	case "net":
		return "VM.Config.Network"
	case "freeze":
		return "VM.PowerMgmt"
	case "affinity", "amd-sev", "arch", "args", "hookscript", "hugepages", "intel-tdx", "ivshmem", "keephugepages",
		"lock", "parallel", "spice_enhancements", "vmgenid":
		return ""
	}
	return "VM.Config.Options"
}

// asksForValue says whether the required privilege depends on the option's value, which is
// checked later.
func asksForValue(key string) bool {
	return isDriveKey(key) || slices.Contains([]string{"serial", "usb", "hostpci", "virtiofs", "tags"}, optionName(key))
}

// checkKeys checks every key that is set or deleted, except those that depend on their
// value (check_vm_modify_config_perm in Qemu.pm).
func (w *World) checkKeys(user string, id int, pool string, keys []string) error {
	if user == "" || user == "root@pam" {
		return nil
	}
	for _, key := range keys {
		if asksForValue(key) {
			continue
		}
		if isCloudInitOption(key) {
			if w.checkVM(user, id, pool, "VM.Config.Cloudinit") != nil && w.checkVM(user, id, pool, "VM.Config.Network") != nil {
				return denied(vmPath(id), "VM.Config.Cloudinit|VM.Config.Network")
			}
			continue
		}
		privilege := optionPrivilege(key)
		if privilege == "" {
			return failf("only root can set '%s' config", key)
		}
		if err := w.checkVM(user, id, pool, privilege); err != nil {
			return err
		}
		if key == "startup" {
			if err := w.check(user, "/", "Sys.Modify"); err != nil {
				return err
			}
		}
	}
	return nil
}

func isCloudInitOption(key string) bool {
	names := []string{"ipconfig", "nameserver", "searchdomain", "cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "sshkeys"}
	return slices.Contains(names, optionName(key))
}

// checkDevice checks options whose value matters: a drive, a port, a device of the host.
// verb is the action: "set", "modify" or "delete".
func (w *World) checkDevice(user string, id int, pool, key, value, verb string) error {
	if user == "" || user == "root@pam" {
		return nil
	}
	if isDriveKey(key) {
		return w.checkDriveRight(user, id, pool, key, value)
	}
	mapping := property(value, "mapping")
	switch optionName(key) {
	case "serial":
		if value != "socket" {
			return failf("only root can %s '%s' config for real devices", verb, key)
		}
		return w.checkVM(user, id, pool, "VM.Config.HWType")
	case "usb":
		if err := w.checkVM(user, id, pool, "VM.Config.HWType"); err != nil || isSpice(value) {
			return err
		}
		if mapping == "" {
			return failf("only root can set '%s' config for real devices", key)
		}
		return w.check(user, "/mapping/usb/"+mapping, "Mapping.Use")
	case "hostpci":
		if mapping == "" {
			return failf("only root can set '%s' config for non-mapped devices", key)
		}
		if err := w.check(user, "/mapping/pci/"+mapping, "Mapping.Use"); err != nil {
			return err
		}
		return w.checkVM(user, id, pool, "VM.Config.HWType")
	case "rng":
		if property("source="+strings.TrimPrefix(value, "source="), "source") == "/dev/hwrng" {
			return w.check(user, "/mapping/hwrng", "Mapping.Use")
		}
	case "virtiofs":
		if err := w.checkVM(user, id, pool, "VM.Config.Disk"); err != nil {
			return err
		}
		directory, _, _ := strings.Cut(strings.TrimPrefix(value, "dirid="), ",")
		return w.check(user, "/mapping/dir/"+directory, "Mapping.Use")
	case "tags":
		return w.checkTags(user, id, pool, w.tagsOf(id), value)
	}
	return nil
}

func isSpice(usb string) bool {
	host, _, _ := strings.Cut(strings.TrimPrefix(usb, "host="), ",")
	return strings.EqualFold(host, "spice")
}

// checkDriveRight: a CD-ROM drive needs another privilege than a disk, and cloud-init an
// additional one.
func (w *World) checkDriveRight(user string, id int, pool, key, value string) error {
	d, err := parseDrive(key, value)
	switch {
	case err != nil:
		return err
	case isCloudInit(d.volid):
		if err := w.checkVM(user, id, pool, "VM.Config.Cloudinit"); err != nil {
			return err
		}
		return w.checkVM(user, id, pool, "VM.Config.CDROM")
	case d.cdrom():
		return w.checkVM(user, id, pool, "VM.Config.CDROM")
	}
	return w.checkVM(user, id, pool, "VM.Config.Disk")
}

// checkBridges checks the privilege to use the bridges of all network cards.
func (w *World) checkBridges(user string, set map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		bridge := property(set[key], "bridge")
		if optionName(key) != "net" || bridge == "" {
			continue
		}
		if err := w.check(user, "/sdn/zones/"+w.zoneOf(bridge)+"/"+bridge, "SDN.Use"); err != nil {
			return err
		}
	}
	return nil
}

func isCDROM(key, value string) bool {
	if value == "" || !isDriveKey(key) {
		return false
	}
	d, err := parseDrive(key, value)
	return err == nil && d.cdrom()
}
