package world

import (
	"maps"
	"slices"
	"strings"
)

// MigrationCheck is what Proxmox knows against a migration of a VM.
type MigrationCheck struct {
	Running    bool
	Allowed    []string            // hosts that it may go to
	Storages   map[string][]string // by host: the VM's storages that it does not have
	Mappings   map[string][]string // by host: the VM's mapped devices that it does not have
	LocalDisks []LocalDisk
	Local      []string          // devices that keep it on its host, as it is now
	Mapped     map[string]string // mapped devices, with the names of their mappings
	HAManaged  bool
}

// LocalDisk is a volume that only the VM's host has.
type LocalDisk struct {
	Volid, Key    string
	Size          int64
	CDROM, Unused bool
}

// CheckMigration is migrate_vm_precondition in Qemu.pm. Like that, it ignores the target, and whether
// hosts are up.
func (w *World) CheckMigration(user, host string, id int) (MigrationCheck, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, vmPath(id), "VM.Migrate"); err != nil {
		return MigrationCheck{}, err
	}
	if err := w.checkQuorum(); err != nil {
		return MigrationCheck{}, err
	}
	v, err := w.vmOn(host, id)
	if err != nil {
		return MigrationCheck{}, err
	}
	if err := v.checkLock(); err != nil {
		return MigrationCheck{}, err
	}
	c := MigrationCheck{
		Running: v.proc != nil, Storages: map[string][]string{}, Mappings: map[string][]string{}, Mapped: map[string]string{},
		HAManaged: w.haStatus(id).Managed, LocalDisks: w.localDisks(v),
	}
	for _, key := range slices.SortedFunc(maps.Keys(v.config), compareKeys) {
		w.keepsHere(&c, v, key)
	}
	for _, other := range w.hosts {
		if other == host {
			continue
		}
		c.Storages[other] = w.lackingStorages(v, other)
		if len(c.Storages[other])+len(c.Mappings[other]) == 0 {
			c.Allowed = append(c.Allowed, other)
		}
	}
	return c, nil
}

// keepsHere is check_local_resources in QemuMigrate/Helpers.pm: only a mapped PCI device is no
// obstacle for a VM that is off.
func (w *World) keepsHere(c *MigrationCheck, v *vm, key string) {
	value := v.config[key]
	kind, id := mappingOf(key, value)
	switch name := optionName(key); {
	case !slices.Contains([]string{"usb", "hostpci", "serial", "parallel"}, name):
		return
	case name == "serial" && value == "socket", name == "usb" && isSpice(value):
		return
	case id != "":
		c.Mapped[key] = id
		for _, host := range w.hosts {
			if !w.mappings[kind+" "+id][host] {
				c.Mappings[host] = append(c.Mappings[host], key)
			}
		}
		if name == "hostpci" && !c.Running {
			return
		}
	}
	c.Local = append(c.Local, key)
}

// lackingStorages is check_local_storage_availability in QemuServer.pm for one host.
func (w *World) lackingStorages(v *vm, host string) []string {
	var lacks []string
	for _, key := range driveKeys(v.config) {
		id, _, managed := strings.Cut(driveVolid(key, v.config[key]), ":")
		s := w.storages[id]
		if strings.HasPrefix(key, "unused") || !managed || s == nil || s.on(host) || slices.Contains(lacks, id) {
			continue
		}
		lacks = append(lacks, id)
	}
	slices.Sort(lacks)
	return lacks
}

// localDisks is $check_vm_disks_local in Qemu.pm: also unused ones, and those of snapshots.
func (w *World) localDisks(v *vm) []LocalDisk {
	var found []LocalDisk
	add := func(config map[string]string) {
		for _, key := range driveKeys(config) {
			d, err := parseDrive(key, config[key])
			id, _, _ := strings.Cut(d.volid, ":")
			known := slices.ContainsFunc(found, func(l LocalDisk) bool { return l.Volid == d.volid })
			if s := w.storages[id]; err != nil || known || d.empty() || d.options["shared"] == "1" || s != nil && s.Shared {
				continue
			}
			l := LocalDisk{Volid: d.volid, Key: key, CDROM: d.cdrom(), Unused: strings.HasPrefix(key, "unused")}
			if vol := w.volumeNamed(d.volid, v.host); vol != nil {
				l.Size = vol.size
			}
			found = append(found, l)
		}
	}
	add(v.config)
	for _, s := range v.snapshots {
		add(s.Config)
	}
	return found
}
