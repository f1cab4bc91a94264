package world

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BackupRequest asks for backups of VMs, one after the other.
type BackupRequest struct {
	VMIDs   []int
	Storage string
}

// Backup backs VMs up to a storage, in a task (API2/VZDump.pm).
func (w *World) Backup(user, host string, r BackupRequest) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, "/storage/"+r.Storage, "Datastore.AllocateSpace"); err != nil {
		return "", err
	}
	return w.startBackup(&backup{w: w, user: user, host: host, vmids: r.VMIDs, storage: r.Storage}), nil
}

// StartBackup backs up VMs in a task that takes that long for each, to a storage that
// keeps nothing.
func (w *World) StartBackup(user, host string, takes time.Duration, vmids ...int) (upid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.startBackup(&backup{w: w, host: host, vmids: vmids, takes: takes, owner: user})
}

// backup is a running vzdump.
type backup struct {
	w       *World
	t       *task
	user    string // whose permissions count; "": none are checked
	owner   string // of the task, if not user
	host    string
	vmids   []int
	storage string        // "": none
	takes   time.Duration // for each VM; 0: depends on its disks
}

// startBackup starts the task. A task for several VMs names none of them.
func (w *World) startBackup(b *backup) (upid string) {
	id := ""
	if len(b.vmids) == 1 {
		id = strconv.Itoa(b.vmids[0])
	}
	if b.owner == "" {
		b.owner = b.user
	}
	return w.startTask(b.host, "vzdump", id, b.owner, func(t *task) error {
		b.t = t
		if err := b.checkStorage(); err != nil {
			return err
		}
		var failed error
		for _, vmid := range slices.Sorted(slices.Values(b.vmids)) {
			if err := w.Check(b.user, vmPath(vmid), "VM.Backup"); err != nil {
				return err
			}
			if err := b.vm(vmid); err != nil {
				t.printf("ERROR: Backup of VM %d failed - %v", vmid, err)
				failed = failf("job errors")
			}
		}
		return failed
	})
}

func (b *backup) checkStorage() error {
	if b.storage == "" {
		return nil
	}
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	s, err := b.w.storageOn(b.storage, b.host)
	if err == nil && !s.holds(backupKind) {
		err = failf("can't use storage '%s' for backups - wrong content type", b.storage)
	}
	if err != nil {
		return fmt.Errorf("could not get storage information for '%s': %w", b.storage, err)
	}
	return nil
}

// vm backs one VM up. If the worker is killed, the lock stays.
func (b *backup) vm(vmid int) error {
	if err := b.lock(vmid); err != nil {
		return err
	}
	began := time.Now()
	err := b.archive(vmid)
	w := b.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if b.t.killed {
		return err
	}
	if v := w.vms[vmid]; v != nil {
		delete(v.config, "lock")
	}
	if err == nil {
		b.t.logf("INFO: Finished Backup of VM %d (%s)", vmid, time.Since(began).Round(time.Second))
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
	w.mu.Lock()
	defer w.mu.Unlock()
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

// archive reads the VM's disks through its process. A stopped VM gets a QEMU process
// without guest: until the end it counts as running, in the state "prelaunch"
// (enforce_vm_running_for_backup in VZDump/QemuServer.pm). Without disks to read no
// process is started.
func (b *backup) archive(vmid int) error {
	w := b.w
	w.mu.Lock()
	v := w.vms[vmid]
	size, written := b.include(v)
	var helper *process
	if v.proc == nil && size > 0 {
		b.t.logf("INFO: starting kvm to execute backup task")
		var err error
		if helper, err = w.launchPaused(v); err != nil {
			w.mu.Unlock()
			return err
		}
	}
	w.mu.Unlock()
	takes := b.takes
	if takes == 0 {
		takes = 2*taskTime + copyTime(size)
	}
	err := b.t.begin(takes)
	w.mu.Lock()
	defer w.mu.Unlock()
	if helper != nil && !b.t.killed {
		b.t.logf("INFO: stopping kvm after backup task")
		w.endProcess(v, helper)
	}
	if err != nil || b.storage == "" {
		return err
	}
	return b.keep(v, written)
}

// include says which disks the backup includes, and their size (get_backup_volumes in
// QemuConfig.pm).
func (b *backup) include(v *vm) (size, written int64) {
	for _, key := range driveKeys(v.config) {
		d, err := parseDrive(key, v.config[key])
		if err != nil || d.empty() || d.cdrom() || strings.HasPrefix(key, "unused") {
			continue
		}
		reason := ""
		if key == "efidisk0" && v.config["bios"] != "ovmf" {
			reason = "efidisk but no OMVF BIOS"
		} else if d.options["backup"] == "0" {
			reason = "backup=no"
		}
		if reason != "" {
			b.t.logf("INFO: exclude disk '%s' '%s' (%s)", key, d.volid, reason)
			continue
		}
		b.t.logf("INFO: include disk '%s' '%s' %s", key, d.volid, d.options["size"])
		if s, vol, err := b.w.volume(d.volid, v.host); err == nil {
			size += vol.size
			if s != nil {
				written += s.allocated(vol)
			}
		}
	}
	return size, written
}

// keep stores the archive: the configuration, without snapshots and unused volumes.
func (b *backup) keep(v *vm, written int64) error {
	s, err := b.w.storageOn(b.storage, b.host)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s/vzdump-qemu-%d-%s.vma", backupKind, v.id, time.Now().UTC().Format("2006_01_02-15_04_05"))
	var config strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(v.config), compareKeys) {
		if !strings.HasPrefix(key, "unused") && key != "lock" && key != "parent" {
			fmt.Fprintf(&config, "%s: %s\n", key, v.config[key])
		}
	}
	vol := s.put(b.host, name)
	vol.media.Write([]byte(config.String()))
	vol.size = int64(config.Len()) + written
	return nil
}
