package world

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ChangeRequest asks for changes of a VM's configuration.
type ChangeRequest struct {
	ID     int
	Set    map[string]string
	Delete []string
	Revert []string // keys whose pending change is dropped
	Digest string   // of the configuration to change; "": any
	Force  bool     // deleted drives are freed, not kept as unusedN
}

// SetConfig changes a configuration synchronously.
func (w *World) SetConfig(user, host string, r ChangeRequest) error {
	if err := w.checkEarly(user, host, &r); err != nil {
		return err
	}
	unlock, takes, err := w.lockChange(host, r)
	if err != nil {
		return err
	}
	defer unlock()
	crash := w.crashOf(host)
	if err := w.delay(takes, nil); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down[host] || w.crashes[host] != crash {
		return failf("host %s went down meanwhile", host) // no client gets this answer
	}
	defer w.noteNames()
	return w.change(user, w.vms[r.ID], r)
}

// SetConfigTask changes a configuration in a task, which takes the lock (the end of
// update_vm_api in Qemu.pm, since qemu-server 9.1.19).
func (w *World) SetConfigTask(user, host string, r ChangeRequest) (string, error) {
	if err := w.checkEarly(user, host, &r); err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return "", ErrClosed
	}
	return w.startTask(host, "qmconfig", strconv.Itoa(r.ID), user, func(t *task) error {
		unlock, takes, err := w.lockChange(host, r)
		if err != nil {
			return err
		}
		defer unlock()
		if err := t.begin(taskTime + takes); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, key := range r.Delete {
			if !w.vms[r.ID].has(key) {
				t.logf("cannot delete '%s' - not set in current configuration!", key)
			}
		}
		return w.change(user, w.vms[r.ID], r)
	}), nil
}

// checkEarly makes the checks before the configuration's lock and any task.
func (w *World) checkEarly(user, host string, r *ChangeRequest) error {
	if err := w.checkRequest(user, r); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.checkChange(host, *r)
	return err
}

// lockChange takes the configuration's lock and checks again. The caller calls unlock
// after the change, which lasts takes.
func (w *World) lockChange(host string, r ChangeRequest) (unlock func(), takes time.Duration, err error) {
	unlock, err = w.lockConfig(r.ID)
	if err != nil {
		return nil, 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	v, err := w.checkChange(host, r)
	if err != nil {
		unlock()
		return nil, 0, err
	}
	return unlock, w.plugTime(v, r), nil
}

// checkChange checks the configuration to change, before its lock is taken and under it,
// like load_and_check_config of update_vm_api in Qemu.pm.
func (w *World) checkChange(host string, r ChangeRequest) (*vm, error) {
	v, err := w.vmOn(host, r.ID)
	if err != nil {
		return nil, err
	}
	if r.Digest != "" && r.Digest != v.digest() {
		return nil, failf("checksum mismatch (file change by other user?)")
	}
	if err := v.checkLock(); err != nil {
		return nil, err
	}
	return v, v.checkBalloon(r.Set)
}

// anyConfigPrivilege are the privileges of which a change needs at least one.
func anyConfigPrivilege() []string {
	return []string{
		"VM.Config.Disk", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Network", "VM.Config.HWType",
		"VM.Config.Options", "VM.Config.Cloudinit",
	}
}

// checkRequest makes the checks before the lock, and normalizes the values as Proxmox
// does.
func (w *World) checkRequest(user string, r *ChangeRequest) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, vmPath(r.ID), anyConfigPrivilege()...); err != nil {
		return err
	}
	set := maps.Clone(r.Set)
	if err := checkOptions(set); err != nil {
		return err
	}
	resolveCDROM(set)
	r.Set, r.Delete = set, slices.Clone(r.Delete)
	for i, key := range r.Delete {
		if key == "cdrom" {
			r.Delete[i] = "ide2"
		}
	}
	if len(r.Set)+len(r.Delete)+len(r.Revert) == 0 {
		return failf("no options specified")
	}
	if err := r.checkLists(); err != nil {
		return err
	}
	if err := checkDrives(r.Set); err != nil {
		return err
	}
	for _, key := range driveKeys(r.Set) {
		if err := w.checkReplicated(r.ID, key, r.Set[key]); err != nil {
			return err
		}
	}
	if err := w.checkKeys(user, r.ID, "", slices.Concat(r.Delete, slices.Sorted(maps.Keys(r.Set)))); err != nil {
		return err
	}
	if err := w.checkVolumes(user, r.ID, r.Set); err != nil {
		return err
	}
	return w.checkBridges(user, r.Set)
}

// checkLists checks the lists of keys for conflicts.
func (r ChangeRequest) checkLists() error {
	for _, key := range r.Revert {
		if !IsOption(key) {
			return BadParam("revert", "unknown option '%s'", key)
		}
		if _, set := r.Set[key]; set {
			return BadParam("delete", "you can't use '-%s' and -revert %s' at the same time", key, key)
		}
	}
	for _, key := range r.Delete {
		if _, set := r.Set[key]; set {
			return BadParam("delete", "you can't use '-%s' and -delete %s' at the same time", key, key)
		}
		if slices.Contains(r.Revert, key) {
			return BadParam("revert", "you can't use '-delete %s' and -revert %s' at the same time", key, key)
		}
		if !IsOption(key) {
			return BadParam("delete", "unknown option '%s'", key)
		}
	}
	return nil
}

// checkReplicated refuses a volume that can't be replicated if the VM has a replication job.
func (w *World) checkReplicated(id int, key, value string) error {
	d, err := parseDrive(key, value)
	if err != nil || w.replicates(id) == "" || d.empty() || d.cdrom() || d.options["replicate"] == "0" {
		return err
	}
	storageID, _, _ := strings.Cut(d.volid, ":")
	if s := w.storages[storageID]; s != nil && !s.Shared && !s.replicates() {
		return failf("cannot add non-replicatable volume to a replicated VM")
	}
	return nil
}

// edit changes a configuration and writes its file. Without quorum the file stays as it
// was, but the change's effects on volumes remain.
func (w *World) edit(v *vm, change func() error) error {
	config, pending, deletions := maps.Clone(v.config), maps.Clone(v.pending), maps.Clone(v.pendingDelete)
	err := change()
	if err == nil {
		err = w.writeConfig(v)
	}
	if err != nil {
		v.config, v.pending, v.pendingDelete = config, pending, deletions
	}
	return err
}
