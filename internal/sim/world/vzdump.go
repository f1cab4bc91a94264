package world

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// StartBackup backs up VMs, one after the other, in a task that takes that long for each and keeps
// nothing. Like vzdump of several VMs, such a task names none of them.
func (w *World) StartBackup(user, host string, takes time.Duration, vmids ...int) (upid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
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

// backup is a running vzdump.
type backup struct {
	w     *World
	t     *task
	host  string
	takes time.Duration // for each VM
}

// vm backs one VM up. If the worker is killed, the lock stays.
func (b *backup) vm(vmid int) error {
	if err := b.lock(vmid); err != nil {
		return err
	}
	err := b.archive(vmid)
	w := b.w
	w.mu.Lock()
	defer w.mu.Unlock()
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
	w.mu.Lock()
	defer w.mu.Unlock()
	if helper != nil && !b.t.killed {
		b.t.logf("INFO: stopping kvm after backup task")
		w.endProcess(v, helper)
	}
	return err
}

// hasBackedUp says whether the VM has a disk that backups include (get_backup_volumes in
// QemuConfig.pm).
func (v *vm) hasBackedUp() bool {
	return slices.ContainsFunc(driveKeys(v.config), func(key string) bool {
		d, err := parseDrive(key, v.config[key])
		left := err != nil || d.empty() || d.cdrom() || strings.HasPrefix(key, "unused")
		return !left && d.options["backup"] != "0" && (key != "efidisk0" || v.config["bios"] == "ovmf")
	})
}
