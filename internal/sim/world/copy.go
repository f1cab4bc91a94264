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
	if err := w.check(user, vmPath(id), "VM.Allocate"); err != nil {
		return "", err
	}
	v, err := w.vmOn(host, id)
	if err != nil {
		return "", err
	}
	if err := v.checkTemplate(); err != nil {
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
	v, err := w.vmOn(host, r.ID)
	if err != nil {
		return err
	}
	if err := v.checkLock(); err != nil {
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
	copied.markNew()
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
		if err := w.checkSnapshot(v, r.Name); err != nil {
			return err
		}
		if err := w.writeConfig(v); err != nil {
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
	v, err := w.vmOn(b.host, vmid)
	if err != nil {
		return err
	}
	if err := v.checkLock(); err != nil {
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
