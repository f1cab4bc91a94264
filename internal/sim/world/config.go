package world

import (
	"fmt"
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

// checkChange checks the configuration to change, before its lock is taken and again under the lock, like
// load_and_check_config of update_vm_api in Qemu.pm.
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

// anyConfigPrivilege lists the privileges of which a change needs at least one.
func anyConfigPrivilege() []string {
	return []string{
		"VM.Config.Disk", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Network", "VM.Config.HWType",
		"VM.Config.Options", "VM.Config.Cloudinit",
	}
}

// checkRequest makes the checks before the lock, and normalizes the values as Proxmox does.
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
	if err := firstError(r.checkLists(), checkDrives(r.Set)); err != nil {
		return err
	}
	for _, key := range driveKeys(r.Set) {
		if err := w.checkReplicated(r.ID, key, r.Set[key]); err != nil {
			return err
		}
	}
	keys := slices.Concat(r.Delete, slices.Sorted(maps.Keys(r.Set)))
	return firstError(w.checkKeys(user, r.ID, "", keys), w.checkVolumes(user, r.ID, r.Set), w.checkBridges(user, r.Set))
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

// edit changes a configuration and writes its file. Without quorum the file stays unchanged, but the change's effects
// on volumes remain.
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

// has reports whether a key has a value, now or pending.
func (v *vm) has(key string) bool {
	_, set := v.config[key]
	_, waits := v.pending[key]
	return set || waits
}

// changing is a change in progress (update_vm_api in Qemu.pm).
type changing struct {
	w        *World
	user     string
	v        *vm
	r        ChangeRequest
	order    []string // the old boot order, without deleted keys and with new CD-ROM drives
	modified map[string]bool
}

// change does the worker's part: it writes option by option as pending into the file, deletions first, and finally
// applies what can be applied. After an error the earlier options stay pending, with the volumes allocated for them,
// even on a stopped VM. Proxmox takes the options in no particular order, the simulator by name.
func (w *World) change(user string, v *vm, r ChangeRequest) error {
	c := &changing{w: w, user: user, v: v, r: v.withReverts(r), order: bootOrder(v.config["boot"]), modified: map[string]bool{}}
	for _, key := range c.r.Delete {
		if !v.has(key) {
			continue // Proxmox only warns
		}
		if err := w.edit(v, func() error { return c.delete(key) }); err != nil {
			return err
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(c.r.Set), compareKeys) {
		if err := w.edit(v, func() error { return c.set(key, c.r.Set[key]) }); err != nil {
			return err
		}
	}
	v.cleanupPending()
	if len(v.pending)+len(v.pendingDelete) == 0 {
		return nil
	}
	var wrong map[string]string
	if v.proc != nil {
		wrong = w.hotplug(user, v, c.modified)
	} else {
		wrong = w.applyPending(user, v)
	}
	if len(wrong) > 0 {
		return badParams(wrong)
	}
	return nil
}

// withReverts expands keys to be reverted as Proxmox does: it sets a key's current value again and deletes a key that
// is only pending. Other effects of a refused change, such as a boot order, stay.
func (v *vm) withReverts(r ChangeRequest) ChangeRequest {
	if len(r.Revert) == 0 {
		return r
	}
	r.Set, r.Delete = maps.Clone(r.Set), slices.Clone(r.Delete)
	if r.Set == nil {
		r.Set = map[string]string{}
	}
	for _, key := range r.Revert {
		if value, set := v.config[key]; set {
			r.Set[key] = value
		} else if _, waits := v.pending[key]; waits {
			r.Delete = append(r.Delete, key)
		}
	}
	return r
}

// delete marks a key for deletion and removes it from the boot order; an unused volume and tags are deleted at once.
func (c *changing) delete(key string) error {
	v := c.v
	c.modified[key] = true
	value, set := v.config[key]
	waiting, waits := v.pending[key]
	if !set {
		value = waiting
	}
	delete(v.pending, key)
	if slices.Contains(c.order, key) {
		c.order = slices.DeleteFunc(slices.Clone(c.order), func(k string) bool { return k == key })
		c.modified["boot"] = true
		v.pending["boot"] = printBoot(c.order)
	}
	if isDriveKey(key) && v.config["protection"] == "1" {
		if strings.HasPrefix(key, "unused") {
			return failf("can't remove unused disk '%s' - protection mode enabled", value)
		}
		return failf("can't remove drive '%s' - protection mode enabled", key)
	}
	left := value
	if key == "tags" { // the tags that the VM has then: none
		left = ""
	}
	if err := c.w.checkDevice(c.user, v.id, "", key, left, "delete"); err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(key, "unused"):
		if err := c.w.deallocate(c.user, v, key, value); err != nil {
			return err
		}
		delete(v.config, key)
		return nil
	case key == "tags":
		delete(v.config, key)
		return nil
	case optionName(key) == "net" && set:
		if err := c.w.checkBridges(c.user, map[string]string{key: value}); err != nil {
			return err
		}
	case isDriveKey(key) && waits:
		c.w.registerUnused(v, key, value)
	}
	v.pendingDelete[key] = c.r.Force
	return nil
}

// set resolves a value and makes it pending.
func (c *changing) set(key, value string) error {
	v := c.v
	c.modified[key] = true
	if waiting, waits := v.pending[key]; waits && waiting == value {
		return nil
	}
	if old, had := v.config[key]; had && (isDriveKey(key) || asksForValue(key) || key == "rng0") {
		if err := c.w.checkDevice(c.user, v.id, "", key, old, "modify"); err != nil {
			return err
		}
	}
	if err := c.w.checkDevice(c.user, v.id, "", key, value, "modify"); err != nil {
		return err
	}
	switch {
	case key == "cipassword": // never pending
		v.config[key] = value
		delete(v.pendingDelete, key)
		return nil
	case isDriveKey(key):
		stored, err := c.setDrive(key, value)
		if err != nil {
			return err
		}
		value = stored
	case optionName(key) == "net":
		if err := c.w.checkBridges(c.user, map[string]string{key: v.config[key]}); err != nil {
			return err
		}
		value = withMAC(value)
	case key == "vmgenid" && value == "1":
		value = newUUID()
	case key == "boot":
		if err := c.checkBoot(value); err != nil {
			return err
		}
	}
	v.pending[key] = value
	delete(v.pendingDelete, key)
	return nil
}

// setDrive resolves a drive. It appends a CD-ROM drive that the boot order lacks to the old order, so a boot= of the
// same request is lost if boot= came first; in Proxmox the order is random. A cloud-init drive is not added
// (drive_is_cdrom with exclude_cloudinit, in Drive.pm).
func (c *changing) setDrive(key, value string) (stored string, err error) {
	v := c.v
	if key == "tpmstate0" {
		if err := checkTPMVersion(v.config[key], value); err != nil {
			return "", err
		}
	}
	if waiting, waits := v.pending[key]; waits {
		c.w.registerUnused(v, key, waiting)
	}
	stored, _, err = c.w.resolveDrive(v, key, value, nil)
	if err != nil {
		return "", err
	}
	if isCDROM(key, stored) && !isCloudInit(driveVolid(key, stored)) && len(c.order) > 0 && !slices.Contains(c.order, key) {
		c.order = append(c.order, key)
		c.modified["boot"] = true
		v.pending["boot"] = printBoot(c.order)
	}
	return stored, nil
}

// checkTPMVersion refuses to change the version of an existing volume.
func checkTPMVersion(old, value string) error {
	was, errOld := parseDrive("tpmstate0", old)
	is, err := parseDrive("tpmstate0", value)
	if errOld != nil || err != nil || was.volid != is.volid {
		return err
	}
	version := func(d drive) string {
		if d.options["version"] == "" {
			return "v1.2"
		}
		return d.options["version"]
	}
	if version(was) != version(is) {
		return failf("cannot change TPM state version after creation")
	}
	return nil
}

// checkBoot requires the devices of a boot order to exist. Changes make this check, creates do not.
func (c *changing) checkBoot(value string) error {
	for _, key := range bootOrder(value) {
		_, comes := c.r.Set[key]
		if !c.v.has(key) && !comes || slices.Contains(c.r.Delete, key) {
			return failf("invalid bootorder: device '%s' does not exist'", key)
		}
	}
	return nil
}

// cleanupPending drops pending changes that have no effect.
func (v *vm) cleanupPending() {
	maps.DeleteFunc(v.pending, func(key, value string) bool { now, set := v.config[key]; return set && now == value })
	maps.DeleteFunc(v.pendingDelete, func(key string, _ bool) bool { _, set := v.config[key]; return !set })
}

// applyPending applies the pending changes of a stopped VM. It returns the changes that can't be applied; they stay
// pending (vmconfig_apply_pending in QemuServer.pm).
func (w *World) applyPending(user string, v *vm) (wrong map[string]string) {
	wrong = map[string]string{}
	for _, key := range slices.SortedFunc(maps.Keys(v.pendingDelete), compareKeys) {
		if err := w.applyDelete(user, v, key); err != nil {
			wrong[key] = fmt.Sprintf("unable to apply pending change %s : %v\n", key, err)
		}
	}
	v.cleanupPending()
	for _, key := range slices.SortedFunc(maps.Keys(v.pending), compareKeys) {
		w.applySet(v, key)
	}
	return wrong
}

// applyDelete deletes a key: its own volume becomes unusedN, or is freed if forced;
// another VM's volume only loses its key.
func (w *World) applyDelete(user string, v *vm, key string) error {
	if value, set := v.config[key]; set && isDriveKey(key) {
		if v.pendingDelete[key] {
			if err := w.deallocate(user, v, key, value); err != nil {
				return err
			}
		} else {
			w.registerUnused(v, key, value)
		}
	}
	delete(v.pendingDelete, key)
	delete(v.config, key)
	v.tidyUnused()
	return nil
}

func (w *World) applySet(v *vm, key string) {
	value := v.pending[key]
	delete(v.pending, key)
	old, had := v.config[key]
	v.config[key] = value
	if key == "description" && value == "" {
		delete(v.config, key) // the file no longer contains the key
	}
	if had && isDriveKey(key) {
		w.registerUnused(v, key, old)
	}
	v.tidyUnused()
	w.violateSharing(v)
}

// deallocate frees the volume of a deleted drive, if the volume is the VM's own and no other key of the VM uses it
// (try_deallocate_drive in QemuServer.pm).
func (w *World) deallocate(user string, v *vm, key, value string) error {
	d, err := parseDrive(key, value)
	if err != nil || d.empty() || d.cdrom() && !isCloudInit(d.volid) || volumeOwner(d.volid) != v.id {
		return err
	}
	storageID, _, _ := strings.Cut(d.volid, ":")
	if err := w.check(user, "/storage/"+storageID, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	if v.inUse(d.volid, key) {
		return failf("unable to delete '%s' - volume is still in use (snapshot?)", d.volid)
	}
	return w.freeVolume(d.volid, v.host)
}

// registerUnused handles the volume of a drive value that no key has any more.
func (w *World) registerUnused(v *vm, key, value string) {
	d, err := parseDrive(key, value)
	switch {
	case err != nil || d.empty() || volumeOwner(d.volid) != v.id:
	case isCloudInit(d.volid):
		_ = w.freeVolume(d.volid, v.host) // Proxmox only warns
	case !d.cdrom():
		v.addUnused(d.volid)
	}
}

// addUnused keeps a volume, without its options, under the lowest free unusedN, and returns that key.
func (v *vm) addUnused(volid string) string {
	for key, value := range v.config {
		if strings.HasPrefix(key, "unused") && value == volid {
			return key
		}
	}
	for n := 0; ; n++ {
		key := fmt.Sprintf("unused%d", n)
		if _, taken := v.config[key]; !taken {
			v.config[key] = volid
			return key
		}
	}
}

// tidyUnused removes unusedN keys whose volume a drive uses again, as every write of the file does.
func (v *vm) tidyUnused() {
	used := map[string]bool{}
	for _, config := range []map[string]string{v.config, v.pending} {
		for _, key := range driveKeys(config) {
			if !strings.HasPrefix(key, "unused") {
				used[driveVolid(key, config[key])] = true
			}
		}
	}
	maps.DeleteFunc(v.config, func(key, value string) bool { return strings.HasPrefix(key, "unused") && used[value] })
}

func driveVolid(key, value string) string {
	d, err := parseDrive(key, value)
	if err != nil {
		return ""
	}
	return d.volid
}
