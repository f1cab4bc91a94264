package world

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

func vmPath(id int) string { return "/vms/" + strconv.Itoa(id) }

// checkVM checks a privilege on a VM; where it is to be made in a pool, one on the pool suffices.
func (w *World) checkVM(user string, id int, pool, privilege string) error {
	err := w.check(user, vmPath(id), privilege)
	if err != nil && pool != "" && w.check(user, "/pool/"+pool, privilege) == nil {
		return nil
	}
	return err
}

// optionPrivilege is what it takes to change an option; "" where only the real root@pam may.
func optionPrivilege(key string, cdrom bool) string {
	if cdrom {
		return "VM.Config.CDROM"
	}
	if isDriveKey(key) {
		return "VM.Config.Disk"
	}
	switch optionName(key) {
	case "boot", "bootdisk", "vmstatestorage":
		return "VM.Config.Disk"
	case "cores", "cpu", "cpulimit", "cpuunits", "numa", "numa#", "smp", "sockets", "vcpus":
		return "VM.Config.CPU"
	case "memory", "balloon", "shares", "allow-ksm":
		return "VM.Config.Memory"
	case "acpi", "audio", "hotplug", "kvm", "machine", "rng", "scsihw", "smbios1", "tablet", "vga", "virtiofs", "watchdog":
		return "VM.Config.HWType"
	case "net":
		return "VM.Config.Network"
	case "ipconfig", "nameserver", "searchdomain", "cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "sshkeys":
		return "VM.Config.Cloudinit"
	case "freeze":
		return "VM.PowerMgmt"
	case "affinity", "amd-sev", "arch", "args", "hookscript", "hostpci", "hugepages", "intel-tdx", "ivshmem", "keephugepages",
		"lock", "parallel", "spice_enhancements", "vmgenid":
		return ""
	}
	return "VM.Config.Options"
}

// checkChange checks every key that is set or deleted.
func (w *World) checkChange(user string, v *vm, id int, pool string, set map[string]string, del []string) error {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if err := w.checkKey(user, v, id, pool, key, set[key]); err != nil {
			return err
		}
	}
	for _, key := range del {
		if err := w.checkKey(user, v, id, pool, key, ""); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) checkKey(user string, v *vm, id int, pool, key, value string) error {
	if user == "" || user == "root@pam" {
		return nil
	}
	cdrom := isCDROM(key, value) || value == "" && v != nil && isCDROM(key, v.config[key])
	privilege := optionPrivilege(key, cdrom)
	mapped := strings.Contains(value, "mapping=")
	switch name := optionName(key); {
	case name == "usb" && (value == "" || mapped || strings.HasPrefix(value, "spice")), name == "hostpci" && mapped:
		privilege = "VM.Config.HWType"
	case name == "serial" && (value == "" || value == "socket"):
		privilege = "VM.Config.HWType"
	case name == "usb", name == "serial", privilege == "":
		return failf("only root can set '%s' config", key)
	case name == "startup":
		if err := w.check(user, "/", "Sys.Modify"); err != nil {
			return err
		}
	}
	if err := w.checkVM(user, id, pool, privilege); err != nil {
		if privilege == "VM.Config.Cloudinit" && w.checkVM(user, id, pool, "VM.Config.Network") == nil {
			return nil // either will do
		}
		return err
	}
	if bridge := property(value, "bridge"); optionName(key) == "net" && bridge != "" {
		return w.check(user, "/sdn/zones/localnetwork/"+bridge, "SDN.Use")
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

// checkVolumes checks the volumes behind the drives that are set: space where
// one is to be allocated, access where one is there already.
func (w *World) checkVolumes(user string, id int, set map[string]string) error {
	for _, key := range driveKeys(set) {
		d, err := parseDrive(key, set[key])
		if err != nil {
			return err
		}
		if d.empty() {
			continue
		}
		if strings.HasPrefix(d.volid, "/") {
			if user == "" || user == "root@pam" {
				continue
			}
			return failf("Only root can pass arbitrary filesystem paths.")
		}
		if storageID, _, ok := d.request(); ok {
			err = w.check(user, "/storage/"+storageID, "Datastore.AllocateSpace")
		} else {
			err = w.checkVolume(user, id, d.volid)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkVolume is the check before a volume is attached to VM id, or shown (id 0).
func (w *World) checkVolume(user string, id int, volid string) error {
	storageID, _, ok := strings.Cut(volid, ":")
	if !ok {
		return failf("unable to parse volume ID '%s'", volid)
	}
	path := "/storage/" + storageID
	if w.check(user, path, "Datastore.Allocate") == nil {
		return nil
	}
	owner := volumeOwner(volid)
	switch {
	case isFile(volid):
		return w.check(user, path, "Datastore.AllocateSpace", "Datastore.Audit")
	case owner == 0:
		return failf("missing privileges to access %s", volid)
	case owner == id:
		return nil
	}
	if err := w.check(user, path, "Datastore.Audit"); err != nil {
		return err
	}
	return w.check(user, vmPath(owner), "VM.Config.Disk")
}

// MaySee says whether the content listing shows a volume to user.
func (w *World) MaySee(user, volid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkVolume(user, 0, volid) == nil
}
