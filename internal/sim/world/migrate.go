package world

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MigrateRequest asks to move a VM to another host.
type MigrateRequest struct {
	ID             int
	Target         string
	Online         bool // a running VM keeps running
	WithLocalDisks bool // with Online: copy local disks meanwhile
}

// Migrate moves a VM to another host: checks at once, the rest in a task. For a VM under
// HA the task only asks HA (migrate_vm in Qemu.pm).
func (w *World) Migrate(user, host string, r MigrateRequest) (string, error) {
	defer w.mu.changing()()
	if err := w.check(user, vmPath(r.ID), "VM.Migrate"); err != nil {
		return "", err
	}
	if r.Target == host {
		return "", BadParam("target", "target is local node.")
	}
	if err := w.checkQuorum(); err != nil {
		return "", err
	}
	if !slices.Contains(w.hosts, r.Target) {
		return "", failf("no such cluster node '%s'", r.Target)
	}
	v, err := w.vmOn(host, r.ID)
	if err != nil {
		return "", err
	}
	if err := v.checkLock(); err != nil {
		return "", err
	}
	if v.proc != nil && !r.Online {
		return "", failf("can't migrate running VM without --online")
	}
	if v.proc != nil && w.replicates(r.ID) != "" && !w.replicatesTo(r.ID, r.Target) {
		return "", failf("Cannot live-migrate replicated VM to node '%s' - not a replication target. Use 'force' to override.", r.Target)
	}
	if err := w.checkAvailable(v, r.Target); err != nil {
		return "", err
	}
	if w.haStatus(r.ID).Managed {
		what, command := fmt.Sprintf("migration for VM %d to node %s", r.ID, r.Target), fmt.Sprintf("migrate vm:%d %s", r.ID, r.Target)
		return w.askHA("hamigrate", user, host, r.ID, what, command, func(s *haService) { s.target = r.Target }), nil
	}
	return w.migrateVM(user, host, r), nil
}

// checkAvailable requires the storage of every drive on both hosts (check_storage_availability in QemuServer.pm).
func (w *World) checkAvailable(v *vm, target string) error {
	for _, key := range driveKeys(v.config) {
		volid := driveVolid(key, v.config[key])
		storageID, _, managed := strings.Cut(volid, ":")
		if strings.HasPrefix(key, "unused") || !managed {
			continue
		}
		for _, host := range []string{v.host, target} {
			if _, err := w.storageOn(storageID, host); err != nil {
				return err
			}
		}
		s, kind, _, err := w.kindOf(volid)
		if err != nil {
			return err
		}
		if !s.holds(kind) {
			return failf("%s: content type '%s' is not available on storage '%s'", volid, kind, s.ID)
		}
	}
	return nil
}

// migrateVM starts the task; mu must be held.
func (w *World) migrateVM(user, host string, r MigrateRequest) (upid string) {
	return w.lockedTask("qmigrate", user, host, r.ID, func(t *task) error {
		m := &migration{w: w, t: t, r: r, host: host}
		if err := m.run(); err != nil {
			if t.killed {
				return err
			}
			t.printf("ERROR: migration aborted: %v", err)
			return failf("migration aborted") // for any error: AbstractMigrate.pm
		}
		return nil
	})
}

// migration is a migration in progress (QemuMigrate.pm). The configuration moves last, so until then the VM is on the
// source host.
type migration struct {
	w       *World
	t       *task
	r       MigrateRequest
	host    string
	running bool
	volumes []localVolume
}

type localVolume struct {
	source, target string // volids
	copy           *volume
}

func (m *migration) run() error {
	if err := m.prepare(); err != nil {
		return err
	}
	err := m.copyVolumes()
	if err == nil && m.running {
		m.t.printf("starting online/live migration on unix:/run/qemu-server/%d.migrate", m.r.ID)
		err = m.t.delay(memoryTime)
	}
	if err == nil && m.w.HostDown(m.r.Target) {
		err = failf("remote command failed with exit code 255")
	}
	if err != nil {
		m.abort()
		return err
	}
	return m.handOver()
}

const memoryTime = 5 * taskTime

// prepare does the work of prepare and of the first half of phase1: it locks the configuration.
func (m *migration) prepare() error {
	w := m.w
	defer w.mu.changing()()
	v, err := w.vmOn(m.host, m.r.ID)
	if err != nil {
		return err
	}
	if err := v.checkLock(); err != nil {
		return err
	}
	if m.running = v.proc != nil; m.running && !m.r.Online {
		return failf("can't migrate running VM without --online")
	}
	if err := w.checkLocalDevices(v, m.r.Target, m.running); err != nil {
		return err
	}
	if w.down[m.r.Target] {
		return failf("Can't connect to destination address using public key")
	}
	m.t.logf("starting migration of VM %d to node '%s'", v.id, m.r.Target)
	if err := w.edit(v, func() error { v.config["lock"] = "migrate"; return nil }); err != nil {
		return err
	}
	if m.volumes, err = m.scan(v); err != nil {
		delete(v.config, "lock")
		return err
	}
	return nil
}

// checkLocalDevices refuses devices of the VM's host; mapped devices must be on the target host too.
func (w *World) checkLocalDevices(v *vm, target string, running bool) error {
	var blocking, missing, mapped []string
	for key, value := range v.config {
		kind, id := mappingOf(key, value)
		switch name := optionName(key); {
		case !slices.Contains([]string{"usb", "hostpci", "serial", "parallel"}, name):
		case name == "serial" && value == "socket", name == "usb" && isSpice(value):
		case id == "":
			blocking = append(blocking, key)
		default:
			mapped = append(mapped, key+":"+id)
			if !w.mappings[kind+" "+id][target] {
				missing = append(missing, key)
			}
		}
	}
	for _, list := range [][]string{blocking, missing, mapped} {
		slices.Sort(list)
	}
	switch {
	case len(blocking) > 0:
		return failf("can't migrate VM which uses local devices: %s", strings.Join(blocking, ", "))
	case len(missing) > 0:
		return failf("can't migrate to '%s': missing mapped devices %s", target, strings.Join(missing, ", "))
	case running && len(mapped) > 0:
		return failf("can't live migrate running VM which uses following mapped devices: %s", strings.Join(mapped, ", "))
	}
	return nil
}

// scan does the work of scan_local_volumes: it lists the volumes on local storages, which must be copied, and refuses
// volumes that can't be copied.
func (m *migration) scan(v *vm) ([]localVolume, error) {
	var found []localVolume
	refused := false
	for key, d := range drivesIn(v.config) {
		if d.options["shared"] == "1" {
			continue
		}
		s, _, err := m.w.volume(d.volid, v.host)
		if err == nil && s != nil && s.Shared {
			continue
		}
		if problem := m.unmovable(v, key, d, s, err); problem != "" {
			m.t.logf("can't migrate local disk '%s': %s", d.volid, problem)
			refused = true
			continue
		}
		if !slices.ContainsFunc(found, func(l localVolume) bool { return l.source == d.volid }) {
			m.t.logf("found local disk '%s'", d.volid)
			found = append(found, localVolume{source: d.volid})
		}
	}
	if refused {
		return nil, failf("Problem found while scanning volumes - can't migrate VM - check log")
	}
	return found, nil
}

func (m *migration) unmovable(v *vm, key string, d drive, s *storage, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case s == nil:
		return "local file/device"
	case d.cdrom() && !isCloudInit(d.volid):
		return "local cdrom image"
	case volumeOwner(d.volid) != v.id:
		return fmt.Sprintf("owned by other VM (owner = VM %d)", volumeOwner(d.volid))
	case len(v.snapshots) > 0 && v.inUse(d.volid, key) && s.Type != "zfspool" && !strings.HasSuffix(d.volid, ".qcow2"):
		return "non-migratable snapshot exists"
	case !slices.Contains([]string{"dir", "btrfs", "zfspool", "lvmthin", "lvm"}, s.Type):
		return fmt.Sprintf("storage type '%s' not supported", s.Type)
	case basePath(strings.TrimPrefix(d.volid, s.ID+":")) != "":
		return "it's a clone of a base volume"
	case m.running && !m.r.WithLocalDisks && !strings.HasPrefix(key, "unused"):
		return "can't live migrate attached local disks without with-local-disks option"
	}
	return ""
}

// copyVolumes copies the volumes to the target host. A copy has the volume's name or, if the name is taken, the next
// free name.
func (m *migration) copyVolumes() error {
	for i := range m.volumes {
		size, err := m.allocateCopy(&m.volumes[i])
		if err != nil {
			return fmt.Errorf("storage migration for '%s' failed - %w", m.volumes[i].source, err)
		}
		if err := m.t.delay(taskTime/2 + copyTime(size)); err != nil {
			return err
		}
		m.t.printf("volume '%s' is '%s' on the target", m.volumes[i].source, m.volumes[i].target)
	}
	return nil
}

func (m *migration) allocateCopy(l *localVolume) (written int64, err error) {
	w := m.w
	defer w.mu.changing()()
	s, vol, err := w.volume(l.source, m.host)
	if err != nil {
		return 0, err
	}
	name := vol.name
	if s.at(m.r.Target)[name] != nil {
		name = s.freeName(m.r.Target, volumeOwner(name), vol.format)
	}
	if l.target, err = w.allocateNamed(s, m.r.Target, name, vol.size, NewMedia(nil)); err != nil {
		return 0, err
	}
	l.copy = s.at(m.r.Target)[name]
	l.copy.written = vol.written
	return s.allocated(vol), nil
}

// abort undoes what was done, unless the worker was killed.
func (m *migration) abort() {
	w := m.w
	defer w.mu.changing()()
	if m.t.killed {
		return
	}
	if v := w.vms[m.r.ID]; v != nil && v.config["lock"] == "migrate" {
		_ = w.edit(v, func() error { delete(v.config, "lock"); return nil }) // Proxmox only logs it
	}
	for _, l := range m.volumes {
		if l.copy != nil && !w.down[m.r.Target] {
			storageID, name, _ := strings.Cut(l.target, ":")
			delete(w.storages[storageID].at(m.r.Target), name)
		}
	}
}

// handOver does the work of phase3_cleanup: it moves the configuration to the target host, frees the copied volumes
// on the source host, and removes the lock on the target host.
func (m *migration) handOver() error {
	w := m.w
	w.mu.Lock()
	v := w.vms[m.r.ID]
	if v == nil || m.t.killed {
		w.mu.Unlock()
		return errInterrupted
	}
	err := w.edit(v, func() error { m.rename(v); return nil })
	if err != nil {
		w.mu.Unlock()
		m.abort()
		return err
	}
	v.host = m.r.Target
	m.moveVolumes()
	w.noteNames()
	w.mu.Unlock()
	if err := m.t.delay(taskTime / 2); err != nil && m.t.killed {
		return err
	}
	defer w.mu.changing()()
	if v.config["lock"] == "migrate" {
		return w.edit(v, func() error { delete(v.config, "lock"); return nil })
	}
	return nil
}

func (m *migration) rename(v *vm) {
	for key, d := range drivesIn(v.config) {
		for _, l := range m.volumes {
			if d.volid == l.source {
				d.volid = l.target
				v.config[key] = d.String()
			}
		}
	}
}

// moveVolumes frees the original volumes; the copies count as the same disks.
func (m *migration) moveVolumes() {
	for _, l := range m.volumes {
		s, vol, err := m.w.volume(l.source, m.host)
		if err != nil {
			continue
		}
		l.copy.media = vol.media
		delete(s.at(m.host), vol.name)
	}
}

// MigrationCheck holds what keeps Proxmox from migrating a VM.
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

// CheckMigration does the work of migrate_vm_precondition in Qemu.pm. Like that function, it ignores the target, and
// whether hosts are up.
func (w *World) CheckMigration(user, host string, id int) (MigrationCheck, error) {
	defer w.mu.changing()()
	if err := firstError(w.check(user, vmPath(id), "VM.Migrate"), w.checkQuorum()); err != nil {
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

// keepsHere adds to c what an option of the VM contributes, like check_local_resources in QemuMigrate/Helpers.pm. A
// mapped PCI device is an obstacle only while the VM runs.
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

// lackingStorages does the work of check_local_storage_availability in QemuServer.pm for one host.
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

// localDisks does the work of $check_vm_disks_local in Qemu.pm. It includes unused disks, and disks of snapshots.
func (w *World) localDisks(v *vm) []LocalDisk {
	var found []LocalDisk
	add := func(config map[string]string) {
		for key, d := range drivesIn(config) {
			id, _, _ := strings.Cut(d.volid, ":")
			known := slices.ContainsFunc(found, func(l LocalDisk) bool { return l.Volid == d.volid })
			if s := w.storages[id]; known || d.options["shared"] == "1" || s != nil && s.Shared {
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

// AddMapping adds a resource mapping of devices on hosts, which VMs can name: kind is "pci" or "usb".
func (w *World) AddMapping(kind, id string, hosts ...string) {
	w.set(func() { w.mappings[kind+" "+id] = toSet(hosts) })
}

// mappingOf returns the mapped device that an option names; "" if the option names none.
func mappingOf(key, value string) (kind, id string) {
	kind = map[string]string{"hostpci": "pci", "usb": "usb"}[optionName(key)]
	return kind, property(value, "mapping")
}

// checkMappings checks that mapped devices exist; only a start makes this check (parse_hostpci in PCI.pm,
// parse_usb_device in USB.pm).
func (w *World) checkMappings(v *vm) error {
	for _, key := range slices.SortedFunc(maps.Keys(v.config), compareKeys) {
		kind, id := mappingOf(key, v.config[key])
		if kind != "" && id != "" && !w.mappings[kind+" "+id][v.host] {
			return failf("%s device mapping not found for '%s'", strings.ToUpper(kind), id)
		}
	}
	return nil
}
