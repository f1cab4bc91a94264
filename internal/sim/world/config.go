package world

import (
	"errors"
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
	return w.change(w.vms[r.ID], r)
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
		return w.change(w.vms[r.ID], r)
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

// change is the worker: deletions, then settings become pending, the file is
// written, and what can be applied now is. What an error leaves behind is
// Proxmox's: volumes freed stay freed, and without quorum new ones stay, orphaned.
func (w *World) change(v *vm, r ChangeRequest) error {
	config, pending, deletions := maps.Clone(v.config), maps.Clone(v.pending), maps.Clone(v.pendingDelete)
	allocated, err := w.request(v, r)
	if err != nil {
		for _, volid := range allocated {
			err = errors.Join(err, w.freeVolume(volid, v.host))
		}
	} else {
		err = w.writeConfig(v)
	}
	if err != nil {
		v.config, v.pending, v.pendingDelete = config, pending, deletions
		return err
	}
	if v.proc != nil {
		return w.hotplug(v)
	}
	w.applyPending(v)
	return nil
}

// request makes a change pending, and returns the volumes allocated for it.
func (w *World) request(v *vm, r ChangeRequest) (allocated []string, err error) {
	for _, key := range r.Revert {
		delete(v.pending, key)
		delete(v.pendingDelete, key)
	}
	for _, key := range r.Delete {
		if err := w.requestDelete(v, key, r.Force); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(r.Set), compareKeys) {
		volid, err := w.requestSet(v, key, r.Set[key])
		if volid != "" {
			allocated = append(allocated, volid)
		}
		if err != nil {
			return allocated, err
		}
	}
	return allocated, nil
}

// requestDelete marks a key for deletion; an unused volume goes at once.
func (w *World) requestDelete(v *vm, key string, force bool) error {
	value, set := v.config[key]
	if isDriveKey(key) && set && v.config["protection"] == "1" && !isCDROM(key, value) {
		return failf("can't remove drive '%s' - protection mode enabled", key)
	}
	delete(v.pending, key)
	if !set {
		return nil // Proxmox only warns
	}
	if strings.HasPrefix(key, "unused") {
		if v.inSnapshot(value) {
			return failf("unable to delete '%s' - volume is still in use (snapshot?)", value)
		}
		if volumeOwner(value) == v.id {
			if err := w.freeVolume(value, v.host); err != nil {
				return err
			}
		}
		delete(v.config, key)
		return nil
	}
	v.pendingDelete[key] = force
	return nil
}

// requestSet resolves a value and makes it pending; it returns the volume allocated for it.
func (w *World) requestSet(v *vm, key, value string) (allocated string, err error) {
	switch {
	case isDriveKey(key):
		value, allocated, err = w.resolveDrive(v, key, value, NewMedia(nil))
		if err != nil {
			return allocated, err
		}
		if _, had := v.config[key]; !had && isCDROM(key, value) {
			v.addToBoot(key)
		}
	case optionName(key) == "net":
		value = withMAC(value)
	case key == "vmgenid" && value == "1":
		value = newUUID()
	}
	v.pending[key] = value
	delete(v.pendingDelete, key)
	return allocated, nil
}

// addToBoot appends a new CD-ROM drive to the boot order.
func (v *vm) addToBoot(key string) {
	boot, ok := v.pending["boot"]
	if !ok {
		boot = v.config["boot"]
	}
	order := bootOrder(boot)
	if len(order) > 0 && !slices.Contains(order, key) {
		v.pending["boot"] = "order=" + strings.Join(append(order, key), ";")
	}
}

func (v *vm) inSnapshot(volid string) bool {
	return slices.ContainsFunc(v.snapshots, func(s snapshot) bool {
		return slices.ContainsFunc(driveKeys(s.config), func(key string) bool {
			d, err := parseDrive(key, s.config[key])
			return err == nil && d.volid == volid
		})
	})
}
