package world

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// hotplugTime is how long plugging a device into or out of a running VM takes.
const hotplugTime = 1200 * time.Millisecond

// ChangeRequest asks for changes of a VM's configuration.
type ChangeRequest struct {
	ID     int
	Set    map[string]string
	Delete []string
	Revert []string // keys whose pending change is forgotten
	Digest string   // of the configuration it is meant for; "": any
	Force  bool     // deleted drives are freed, not kept as unusedN
}

// SetConfig changes a configuration and returns when that is done.
func (w *World) SetConfig(user, host string, r ChangeRequest) error {
	unlock, slow, err := w.beginChange(user, host, &r)
	if err != nil {
		return err
	}
	defer unlock()
	if slow {
		if err := w.delay(hotplugTime, nil); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.noteNames()
	return w.change(user, w.vms[r.ID], r)
}

// SetConfigTask changes a configuration in a task; what can be checked is checked before.
func (w *World) SetConfigTask(user, host string, r ChangeRequest) (string, error) {
	unlock, _, err := w.beginChange(user, host, &r)
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		unlock()
		return "", ErrClosed
	}
	return w.startTask(host, "qmconfig", strconv.Itoa(r.ID), user, func(t *task) error {
		defer unlock()
		if err := t.begin(taskTime); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.change(user, w.vms[r.ID], r)
	}), nil
}

// beginChange checks a change and takes the configuration's lock; the caller calls unlock.
func (w *World) beginChange(user, host string, r *ChangeRequest) (unlock func(), slow bool, err error) {
	if err := w.checkRequest(user, host, r); err != nil {
		return nil, false, err
	}
	unlock, err = w.lockConfig(r.ID)
	if err != nil {
		return nil, false, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	v, err := w.vmOn(host, r.ID)
	if err == nil && r.Digest != "" && r.Digest != v.digest() {
		err = failf("checksum mismatch (file change by other user?)")
	}
	if err == nil {
		err = v.checkLock()
	}
	if err != nil {
		unlock()
		return nil, false, err
	}
	return unlock, v.proc != nil && touchesDrives(*r), nil
}

func touchesDrives(r ChangeRequest) bool {
	return len(driveKeys(r.Set)) > 0 || slices.ContainsFunc(r.Delete, isDriveKey)
}

// checkRequest checks what needs no look at the configuration itself, and
// writes the values in Proxmox's own form.
func (w *World) checkRequest(user, host string, r *ChangeRequest) error {
	set := maps.Clone(r.Set)
	if err := checkOptions(set); err != nil {
		return err
	}
	r.Set = set
	if len(r.Set)+len(r.Delete)+len(r.Revert) == 0 {
		return failf("no options specified")
	}
	for _, key := range slices.Concat(r.Delete, r.Revert) {
		if !IsOption(key) {
			return BadParam("delete", "unknown option '%s'", key)
		}
		if _, both := r.Set[key]; both {
			return BadParam("delete", "cannot set and delete property '%s'", key)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.vms[r.ID]
	if err := w.checkChange(user, v, r.ID, "", r.Set, r.Delete); err != nil {
		return err
	}
	if _, err := w.vmOn(host, r.ID); err != nil {
		return err
	}
	if err := w.checkVolumes(user, r.ID, r.Set); err != nil {
		return err
	}
	for _, key := range driveKeys(r.Set) {
		if err := w.checkExists(v.host, key, r.Set[key]); err != nil {
			return err
		}
		if err := w.checkReplicated(v.id, key, r.Set[key]); err != nil {
			return err
		}
	}
	return nil
}

// checkReplicated refuses a volume that replication could not copy to a VM that has a job for it.
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

// checkExists says that a drive to be set has its volume, unless that is to be allocated.
func (w *World) checkExists(host, key, value string) error {
	d, err := parseDrive(key, value)
	if err != nil || d.empty() {
		return err
	}
	if _, _, ok := d.request(); ok {
		return nil
	}
	_, _, err = w.volume(d.volid, host)
	return err
}

// change is the worker: option by option it writes what is asked for as pending
// into the file, deletions first, and applies all that can be applied at the
// end. An error in between leaves what came before it pending, volumes
// allocated included, even on a VM that is stopped (update_vm_api in Qemu.pm,
// which takes the options in no particular order).
func (w *World) change(user string, v *vm, r ChangeRequest) error {
	if len(r.Revert) > 0 {
		if err := w.edit(v, func() error { return v.revert(r.Revert) }); err != nil {
			return err
		}
	}
	for _, key := range r.Delete {
		if err := w.edit(v, func() error { return w.requestDelete(user, v, key, r.Force) }); err != nil {
			return err
		}
	}
	order := slices.DeleteFunc(bootOrder(v.config["boot"]), func(key string) bool { return slices.Contains(r.Delete, key) })
	for _, key := range slices.SortedFunc(maps.Keys(r.Set), compareKeys) {
		if err := w.edit(v, func() error { return w.requestSet(v, key, r, &order) }); err != nil {
			return err
		}
	}
	if v.proc != nil {
		return w.hotplug(v)
	}
	w.applyPending(v)
	return nil
}

// edit changes a configuration and writes its file. Without quorum the file
// stays as it was, but not what the change did to volumes.
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

func (v *vm) revert(keys []string) error {
	for _, key := range keys {
		delete(v.pending, key)
		delete(v.pendingDelete, key)
	}
	return nil
}

// requestDelete marks a key for deletion; an unused volume goes at once.
func (w *World) requestDelete(user string, v *vm, key string, force bool) error {
	value, set := v.config[key]
	waiting, pending := v.pending[key]
	if !set && !pending {
		return nil // Proxmox only warns
	}
	if isDriveKey(key) && v.config["protection"] == "1" {
		if strings.HasPrefix(key, "unused") {
			return failf("can't remove unused disk '%s' - protection mode enabled", value)
		}
		return failf("can't remove drive '%s' - protection mode enabled", key)
	}
	delete(v.pending, key)
	if strings.HasPrefix(key, "unused") {
		return w.deleteUnused(user, v, key, value)
	}
	if pending && isDriveKey(key) {
		w.release(v, waiting, key, false)
	}
	v.pendingDelete[key] = force
	return nil
}

// deleteUnused frees an unused volume, if it is the VM's own and no snapshot needs it.
func (w *World) deleteUnused(user string, v *vm, key, volid string) error {
	if volumeOwner(volid) == v.id {
		storageID, _, _ := strings.Cut(volid, ":")
		if err := w.check(user, "/storage/"+storageID, "Datastore.AllocateSpace"); err != nil {
			return err
		}
		if v.inSnapshot(volid) {
			return failf("unable to delete '%s' - volume is still in use (snapshot?)", volid)
		}
		if err := w.freeVolume(volid, v.host); err != nil {
			return err
		}
	}
	delete(v.config, key)
	return nil
}

// requestSet resolves a value and makes it pending. order is the boot order
// that the configuration had before the request, CD-ROM drives that it lacked added.
func (w *World) requestSet(v *vm, key string, r ChangeRequest, order *[]string) error {
	value := r.Set[key]
	switch {
	case isDriveKey(key):
		if waiting, ok := v.pending[key]; ok {
			w.release(v, waiting, key, false)
		}
		stored, _, err := w.resolveDrive(v, key, value, NewMedia(nil))
		if err != nil {
			return err
		}
		if value = stored; isCDROM(key, value) {
			v.addToBoot(key, order)
		}
	case optionName(key) == "net":
		value = withMAC(value)
	case key == "vmgenid" && value == "1":
		value = newUUID()
	case key == "boot":
		if err := v.checkBoot(r); err != nil {
			return err
		}
	}
	v.pending[key] = value
	delete(v.pendingDelete, key)
	return nil
}

// checkBoot wants the devices of a boot order to be there; only a change asks for that, a create doesn't.
func (v *vm) checkBoot(r ChangeRequest) error {
	for _, key := range bootOrder(r.Set["boot"]) {
		_, has := v.config[key]
		_, waits := v.pending[key]
		_, comes := r.Set[key]
		if !has && !waits && !comes || slices.Contains(r.Delete, key) {
			return failf("invalid bootorder: device '%s' does not exist'", key)
		}
	}
	return nil
}

// addToBoot appends a CD-ROM drive to the boot order, if that lacks it. Proxmox
// appends to the order from before the request: a boot= of the same request is
// lost where it was looked at first, which is left to chance (update_vm_api in Qemu.pm).
func (v *vm) addToBoot(key string, order *[]string) {
	if len(*order) > 0 && !slices.Contains(*order, key) {
		*order = append(*order, key)
		v.pending["boot"] = "order=" + strings.Join(*order, ";")
	}
}
