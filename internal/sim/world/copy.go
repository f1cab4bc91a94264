package world

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MakeTemplate turns a VM into a template, in a task: its disks become base volumes of linked clones.
func (w *World) MakeTemplate(user, host string, id int) (string, error) {
	defer w.mu.changing()()
	v, err := w.vmFor(user, "VM.Allocate", host, id)
	if err == nil {
		err = v.checkTemplate()
	}
	if err != nil {
		return "", err
	}
	return w.vmTask("qmtemplate", user, host, id, func(_ *task, v *vm) error {
		if err := v.checkTemplate(); err != nil {
			return err
		}
		return w.makeTemplate(v)
	}), nil
}

func (v *vm) checkTemplate() error {
	switch {
	case v.checkLock() != nil:
		return v.checkLock()
	case len(v.snapshots) > 0:
		return failf("unable to create template, because VM contains snapshots")
	case v.config["template"] == "1":
		return failf("you can't convert a template to a template")
	case v.proc != nil:
		return failf("you can't convert a VM to template if VM is running")
	}
	return nil
}

// makeTemplate renames every disk of the VM: vm-400-disk-0 becomes base-400-disk-0.
func (w *World) makeTemplate(v *vm) error {
	if err := w.edit(v, func() error { v.config["template"] = "1"; return nil }); err != nil {
		return err
	}
	for key, d := range v.disks() {
		s, vol, err := w.volume(d.volid, v.host)
		if err != nil {
			return err
		}
		if s == nil || s.fixed() {
			return failf("volume '%s' does not support template/clone", d.volid)
		}
		delete(s.at(v.host), vol.name)
		dir, name := path.Split(vol.name)
		vol.name = dir + "base-" + strings.TrimPrefix(name, "vm-")
		s.at(v.host)[vol.name] = vol
		d.volid = s.ID + ":" + vol.name
		if err := w.edit(v, func() error { v.config[key] = d.String(); return nil }); err != nil {
			return err
		}
	}
	return nil
}

// disks returns the drives in use that have a volume, by key, in bus order.
func (v *vm) disks() iter.Seq2[string, drive] {
	return func(yield func(string, drive) bool) {
		for key, d := range drivesIn(v.config) {
			if !d.cdrom() && !strings.HasPrefix(key, "unused") && !yield(key, d) {
				return
			}
		}
	}
}

// CloneRequest asks for a copy of a VM.
type CloneRequest struct {
	ID, NewID         int
	Name, Description string
	Pool              string
	Full              *bool // nil: linked where the VM is a template
}

// Clone makes a copy of a VM, in a task: with copies of the VM's disks, or with disks based on the template's.
func (w *World) Clone(user, host string, r CloneRequest) (string, error) {
	defer w.mu.changing()()
	rights := firstError(w.check(user, vmPath(r.ID), "VM.Clone"), w.checkVM(user, r.NewID, r.Pool, "VM.Allocate"))
	if err := firstError(rights, w.checkClone(user, host, r)); err != nil {
		return "", err
	}
	return w.vmTask("qmclone", user, host, r.ID, func(_ *task, v *vm) error {
		if err := w.checkClone(user, host, r); err != nil {
			return err
		}
		if err := w.clone(v, r); err != nil {
			return fmt.Errorf("clone failed: %w", err)
		}
		return nil
	}), nil
}

func (r CloneRequest) full(v *vm) bool {
	if r.Full == nil {
		return v.config["template"] != "1"
	}
	return *r.Full
}

func (w *World) checkClone(user, host string, r CloneRequest) error {
	if r.Pool != "" && !w.pools[r.Pool] {
		return &Error{Status: 403, Message: fmt.Sprintf("Permission check failed (pool '%s' does not exist)", r.Pool)}
	}
	if err := w.checkQuorum(); err != nil {
		return err
	}
	v, err := w.unlocked(host, r.ID)
	if err != nil {
		return err
	}
	for _, d := range v.disks() {
		storageID, _, _ := strings.Cut(d.volid, ":")
		if err := w.check(user, "/storage/"+storageID, "Datastore.AllocateSpace"); err != nil {
			return err
		}
	}
	if err := w.checkBridges(user, v.config); err != nil {
		return err
	}
	if w.vms[r.NewID] != nil {
		return failf("unable to create VM %d: config file already exists", r.NewID)
	}
	for key, d := range v.disks() {
		if !r.full(v) && key != "tpmstate0" && !strings.HasPrefix(path.Base(d.volid), "base-") {
			return failf("Linked clone feature is not supported for '%s' (%s)", d.volid, key)
		}
	}
	return nil
}

// clone makes the copy; if it fails, it frees the new volumes.
func (w *World) clone(v *vm, r CloneRequest) error {
	config := maps.Clone(v.config)
	maps.DeleteFunc(config, func(key, _ string) bool {
		return strings.HasPrefix(key, "unused") || slices.Contains([]string{"parent", "template", "lock"}, key)
	})
	copied := newVM(r.NewID, v.host, config)
	copied.pool = r.Pool
	var made []string
	for key, d := range v.disks() {
		volid, err := w.cloneDisk(copied, key, d, !r.full(v) && key != "tpmstate0")
		if err != nil {
			for _, volid := range made {
				_ = w.freeVolume(volid, v.host) // Proxmox warns at most
			}
			return err
		}
		made = append(made, volid)
	}
	for key, value := range config {
		if optionName(key) == "net" {
			model, rest, _ := strings.Cut(value, ",")
			model, _, _ = strings.Cut(model, "=")
			config[key] = withMAC(strings.TrimSuffix(model+","+rest, ","))
		}
	}
	config["smbios1"] = "uuid=" + newUUID()
	if config["vmgenid"] != "" {
		config["vmgenid"] = newUUID()
	}
	config["name"] = cmp.Or(r.Name, "Copy-of-VM-"+cmp.Or(v.config["name"], strconv.Itoa(v.id)))
	if r.Description != "" {
		config["description"] = r.Description
	}
	copied.made = time.Now()
	w.vms[r.NewID] = copied
	return nil
}

// cloneDisk replaces the volume of a copied VM's key by a new volume. A linked clone has its base in its name, and on
// a file system is always a qcow2.
func (w *World) cloneDisk(copied *vm, key string, d drive, linked bool) (volid string, err error) {
	s, vol, err := w.volume(d.volid, copied.host)
	if err != nil {
		return "", err
	}
	if s == nil {
		return "", failf("Full clone feature is not supported for '%s' (%s)", d.volid, key)
	}
	media := NewMedia(slices.Clone(vol.media.Bytes()))
	switch {
	case !linked:
		d.volid, err = w.allocate(s, copied.host, copied.id, vol.format, vol.size, media)
	case s.Type == "lvmthin":
		d.volid, err = w.allocate(s, copied.host, copied.id, "", vol.size, media)
	default:
		name := vol.name + "/" + s.freeName(copied.host, copied.id, "qcow2")
		d.volid, err = w.allocateNamed(s, copied.host, name, vol.size, media)
	}
	if err != nil {
		return "", err
	}
	copied.config[key] = d.String()
	return d.volid, nil
}

// Snapshot is a snapshot of a VM.
type Snapshot struct {
	Name        string
	Description string
	Memory      bool // includes the state of the running VM, in its own volume
	Time        time.Time
	Parent      string
	Config      map[string]string // at the time of the snapshot
}

// AddSnapshot adds a snapshot of a VM's configuration, without disk content.
func (w *World) AddSnapshot(id int, s Snapshot) error {
	defer w.mu.changing()()
	v, ok := w.vms[id]
	if !ok {
		return fmt.Errorf("add snapshot %s: no VM %d", s.Name, id)
	}
	if err := w.snapshot(v, s); err != nil {
		return fmt.Errorf("add snapshot %s: %w", s.Name, err)
	}
	return nil
}

func (w *World) snapshot(v *vm, s Snapshot) error {
	s.Config, s.Parent = maps.Clone(v.config), v.config["parent"]
	maps.DeleteFunc(s.Config, func(key, _ string) bool { // __snapshot_copy_config in AbstractConfig.pm
		return strings.HasPrefix(key, "unused") || key == "lock" || key == "description"
	})
	s.Time = cmp.Or(s.Time, w.now(v.host))
	s.Config["snaptime"] = strconv.FormatInt(s.Time.Unix(), 10)
	if s.Description != "" {
		s.Config["description"] = s.Description
	}
	if s.Memory {
		state, err := w.saveState(v, s.Name)
		if err != nil {
			return err
		}
		s.Config["vmstate"] = state
	}
	v.config["parent"] = s.Name
	v.snapshots = append(v.snapshots, s)
	return nil
}

// DeleteSnapshot removes a snapshot of a VM; its children get its parent.
func (w *World) DeleteSnapshot(id int, name string) error {
	defer w.mu.changing()()
	v, ok := w.vms[id]
	if !ok {
		return fmt.Errorf("delete snapshot %s: no VM %d", name, id)
	}
	if err := w.forgetSnapshot(v, name); err != nil {
		return fmt.Errorf("delete snapshot %s of VM %d: %w", name, id, err)
	}
	return nil
}

func (w *World) forgetSnapshot(v *vm, name string) error {
	i := slices.IndexFunc(v.snapshots, func(s Snapshot) bool { return s.Name == name })
	if i < 0 {
		return failf("snapshot '%s' does not exist", name)
	}
	gone := v.snapshots[i]
	if state := gone.Config["vmstate"]; state != "" {
		if err := w.freeVolume(state, v.host); err != nil {
			return err
		}
	}
	v.snapshots = slices.Delete(v.snapshots, i, i+1)
	for i := range v.snapshots {
		if v.snapshots[i].Parent == name {
			v.snapshots[i].Parent = gone.Parent
		}
	}
	if v.config["parent"] == name {
		if v.config["parent"] = gone.Parent; gone.Parent == "" {
			delete(v.config, "parent")
		}
	}
	return nil
}

// saveState allocates the volume for a VM's memory on the storage of its first disk.
func (w *World) saveState(v *vm, snapshot string) (volid string, err error) {
	for _, d := range drivesIn(v.config) {
		if d.cdrom() {
			continue
		}
		s, _, err := w.volume(d.volid, v.host)
		if err != nil {
			return "", err
		}
		if s == nil {
			continue // a device of the host
		}
		name := fmt.Sprintf("vm-%d-state-%s", v.id, snapshot)
		if !s.block() {
			name = fmt.Sprintf("%d/%s.raw", v.id, name)
		}
		return w.allocateNamed(s, v.host, name, gib, NewMedia(nil))
	}
	return "", fmt.Errorf("VM %d has no disk", v.id)
}

// inUse reports whether another key of the VM, or a snapshot, uses a volume (is_volume_in_use in Drive.pm).
func (v *vm) inUse(volid, but string) bool {
	names := func(config map[string]string, but string) bool {
		return slices.ContainsFunc(driveKeys(config), func(key string) bool {
			return key != but && !strings.HasPrefix(key, "unused") && driveVolid(key, config[key]) == volid
		})
	}
	return names(v.config, but) || slices.ContainsFunc(v.snapshots, func(s Snapshot) bool { return names(s.Config, "") })
}

// SnapshotRequest asks to make or remove a snapshot.
type SnapshotRequest struct {
	ID          int
	Name        string
	Description string
	Memory      bool
}

func (w *World) CreateSnapshot(user, host string, r SnapshotRequest) (string, error) {
	defer w.mu.changing()()
	if err := w.check(user, vmPath(r.ID), "VM.Snapshot"); err != nil {
		return "", err
	}
	if r.Name == "current" || strings.EqualFold(r.Name, "pending") {
		return "", failf("unable to use snapshot name '%s' (reserved name)", strings.ToLower(r.Name))
	}
	if _, err := w.vmOn(host, r.ID); err != nil {
		return "", err
	}
	return w.vmTask("qmsnapshot", user, host, r.ID, func(_ *task, v *vm) error {
		err := w.checkSnapshot(v, r.Name)
		if err == nil {
			err = w.writeConfig(v)
		}
		if err != nil {
			return err
		}
		return w.snapshot(v, Snapshot{Name: r.Name, Description: r.Description, Memory: r.Memory && v.proc != nil})
	}), nil
}

// checkSnapshot checks that every volume supports snapshots (__snapshot_prepare in AbstractConfig.pm).
func (w *World) checkSnapshot(v *vm, name string) error {
	if v.config["template"] == "1" {
		return failf("you can't take a snapshot if it's a template")
	}
	if slices.ContainsFunc(v.snapshots, func(s Snapshot) bool { return s.Name == name }) {
		return failf("snapshot name '%s' already used", name)
	}
	for _, d := range v.disks() {
		s, vol, err := w.volume(d.volid, v.host)
		if err != nil {
			return err
		}
		if s == nil || !s.snapshots(vol.format) {
			return failf("snapshot feature is not available")
		}
	}
	return nil
}

func (w *World) RemoveSnapshot(user, host string, id int, name string) (string, error) {
	defer w.mu.changing()()
	if err := w.check(user, vmPath(id), "VM.Snapshot"); err != nil {
		return "", err
	}
	return w.vmTask("qmdelsnapshot", user, host, id, func(_ *task, v *vm) error {
		if err := w.writeConfig(v); err != nil {
			return err
		}
		return w.forgetSnapshot(v, name)
	}), nil
}

// StartBackup backs up VMs, one after the other, in a task that takes that long for each VM and keeps nothing. Like
// vzdump of several VMs, a task for several VMs names none of them.
func (w *World) StartBackup(user, host string, takes time.Duration, vmids ...int) (upid string) {
	defer w.mu.changing()()
	id := ""
	if len(vmids) == 1 {
		id = strconv.Itoa(vmids[0])
	}
	return w.startTask(host, "vzdump", id, user, func(t *task) error {
		b := &backup{w: w, t: t, host: host, takes: takes}
		var failed error
		for _, vmid := range slices.Sorted(slices.Values(vmids)) {
			if err := b.vm(vmid); err != nil {
				t.printf("ERROR: Backup of VM %d failed - %v", vmid, err)
				failed = failf("job errors")
			}
		}
		return failed
	})
}

type backup struct {
	w     *World
	t     *task
	host  string
	takes time.Duration // for each VM
}

// vm backs up one VM. If the worker is killed, the lock stays.
func (b *backup) vm(vmid int) error {
	if err := b.lock(vmid); err != nil {
		return err
	}
	err := b.archive(vmid)
	w := b.w
	defer w.mu.changing()()
	if v := w.vms[vmid]; v != nil && !b.t.killed {
		delete(v.config, "lock")
	}
	return err
}

func (b *backup) lock(vmid int) error {
	w := b.w
	unlock, err := w.lockConfig(vmid)
	if err != nil {
		return err
	}
	defer unlock()
	defer w.mu.changing()()
	if b.t.stopped {
		return errInterrupted
	}
	v, err := w.unlocked(b.host, vmid)
	if err != nil {
		return err
	}
	b.t.logf("INFO: Starting Backup of VM %d (qemu)", vmid)
	return w.edit(v, func() error { v.config["lock"] = "backup"; return nil })
}

// archive reads the VM's disks through its process. A stopped VM gets a QEMU process without guest: until the end the
// VM counts as running, in the state "prelaunch" (enforce_vm_running_for_backup in VZDump/QemuServer.pm). Without
// disks to read, no process is started.
func (b *backup) archive(vmid int) error {
	w := b.w
	w.mu.Lock()
	v := w.vms[vmid]
	var helper *process
	if v.proc == nil && v.hasBackedUp() {
		b.t.logf("INFO: starting kvm to execute backup task")
		var err error
		if helper, err = w.launchPaused(v); err != nil {
			w.mu.Unlock()
			return err
		}
	}
	w.mu.Unlock()
	err := b.t.begin(b.takes)
	defer w.mu.changing()()
	if helper != nil && !b.t.killed {
		b.t.logf("INFO: stopping kvm after backup task")
		w.endProcess(v, helper)
	}
	return err
}

// hasBackedUp reports whether the VM has a disk that backups include (get_backup_volumes in QemuConfig.pm).
func (v *vm) hasBackedUp() bool {
	for key, d := range v.disks() {
		if d.options["backup"] != "0" && (key != "efidisk0" || v.config["bios"] == "ovmf") {
			return true
		}
	}
	return false
}

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
	rights, quorum := w.check(user, vmPath(r.ID), "VM.Migrate"), w.checkQuorum()
	v, err := w.unlocked(host, r.ID)
	toTarget := func(j ReplicationJob) bool { return j.Guest == r.ID && j.Target == r.Target }
	switch {
	case rights != nil:
		return "", rights
	case r.Target == host:
		return "", BadParam("target", "target is local node.")
	case quorum != nil:
		return "", quorum
	case !slices.Contains(w.hosts, r.Target):
		return "", failf("no such cluster node '%s'", r.Target)
	case err != nil:
		return "", err
	case v.proc != nil && !r.Online:
		return "", failf("can't migrate running VM without --online")
	case v.proc != nil && w.replicates(r.ID) != "" && !slices.ContainsFunc(w.replication, toTarget):
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
	v, err := w.unlocked(m.host, m.r.ID)
	if err != nil {
		return err
	}
	if m.running = v.proc != nil; m.running && !m.r.Online {
		return failf("can't migrate running VM without --online")
	}
	if err := w.checkLocalDevices(v, m.r.Target); err != nil {
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
func (w *World) checkLocalDevices(v *vm, target string) error {
	c := w.localDevices(v)
	blocking := slices.DeleteFunc(c.Local, func(key string) bool { return c.Mapped[key] != "" })
	missing := c.Mappings[target]
	var mapped []string
	for key, id := range c.Mapped {
		mapped = append(mapped, key+":"+id)
	}
	for _, list := range [][]string{blocking, missing, mapped} {
		slices.Sort(list)
	}
	switch {
	case len(blocking) > 0:
		return failf("can't migrate VM which uses local devices: %s", strings.Join(blocking, ", "))
	case len(missing) > 0:
		return failf("can't migrate to '%s': missing mapped devices %s", target, strings.Join(missing, ", "))
	case c.Running && len(mapped) > 0:
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
	v, err := w.unlocked(host, id)
	if err != nil {
		return MigrationCheck{}, err
	}
	c := w.localDevices(v)
	c.Storages, c.HAManaged, c.LocalDisks = map[string][]string{}, w.haStatus(id).Managed, w.localDisks(v)
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

// localDevices fills in which devices keep the VM here, like check_local_resources in QemuMigrate/Helpers.pm. A
// mapped PCI device is an obstacle only while the VM runs.
func (w *World) localDevices(v *vm) MigrationCheck {
	c := MigrationCheck{Running: v.proc != nil, Mappings: map[string][]string{}, Mapped: map[string]string{}}
	for _, key := range slices.SortedFunc(maps.Keys(v.config), compareKeys) {
		kind, id := mappingOf(key, v.config[key])
		name := optionName(key)
		if !slices.Contains([]string{"usb", "hostpci", "serial", "parallel"}, name) ||
			name == "serial" && v.config[key] == "socket" || name == "usb" && isSpice(v.config[key]) {
			continue
		}
		if id != "" {
			c.Mapped[key] = id
			for _, host := range w.hosts {
				if !w.mappings[kind+" "+id][host] {
					c.Mappings[host] = append(c.Mappings[host], key)
				}
			}
		}
		if id == "" || name != "hostpci" || c.Running {
			c.Local = append(c.Local, key)
		}
	}
	return c
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
