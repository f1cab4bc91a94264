package world

import (
	"bytes"
	"cmp"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
	defer w.mu.changing()()
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
	defer w.mu.changing()()
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
		defer w.mu.changing()()
		for _, key := range r.Delete {
			if !w.vms[r.ID].has(key) {
				t.logf("cannot delete '%s' - not set in current configuration!", key)
			}
		}
		return w.change(user, w.vms[r.ID], r)
	}), nil
}

func (w *World) checkEarly(user, host string, r *ChangeRequest) error {
	if err := w.checkRequest(user, r); err != nil {
		return err
	}
	defer w.mu.changing()()
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
	defer w.mu.changing()()
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
	switch {
	case err != nil:
		return nil, err
	case r.Digest != "" && r.Digest != v.digest():
		return nil, failf("checksum mismatch (file change by other user?)")
	}
	return v, firstError(v.checkLock(), v.checkBalloon(r.Set))
}

// checkRequest makes the checks before the lock, and normalizes the values as Proxmox does.
func (w *World) checkRequest(user string, r *ChangeRequest) error {
	defer w.mu.changing()()
	anyOf := strings.Fields("VM.Config.Disk VM.Config.CDROM VM.Config.CPU VM.Config.Memory VM.Config.Network VM.Config.HWType VM.Config.Options VM.Config.Cloudinit")
	if err := w.check(user, vmPath(r.ID), anyOf...); err != nil {
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
	if v.proc != nil {
		return BadParams(w.hotplug(user, v, c.modified))
	}
	return BadParams(w.applyPending(user, v))
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
	left := map[bool]string{false: value}[key == "tags"] // the tags that the VM has then: none
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

func checkTPMVersion(old, value string) error {
	was, errOld := parseDrive("tpmstate0", old)
	is, err := parseDrive("tpmstate0", value)
	if errOld != nil || err != nil || was.volid != is.volid {
		return err
	}
	version := func(d drive) string { return cmp.Or(d.options["version"], "v1.2") }
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

const (
	// hotplugTime is how long plugging or unplugging a device of a running VM takes.
	hotplugTime = 1200 * time.Millisecond
	// busyTime is how long Proxmox waits for a device that the guest does not release.
	busyTime = 6200 * time.Millisecond
	// controllerTime is how long Proxmox waits for a SCSI disk with its own controller that the guest does not release.
	controllerTime = 12 * time.Second
)

// plugTime returns how long it takes to plug the devices of a change; mu must be held.
func (w *World) plugTime(v *vm, r ChangeRequest) (takes time.Duration) {
	if v.proc == nil {
		return 0
	}
	for _, key := range slices.Concat(slices.Sorted(maps.Keys(r.Set)), r.Delete) {
		_, set := r.Set[key]
		switch {
		case !isDevice(key) || v.isBootDisk(key):
		case set:
			takes += hotplugTime
		case !v.has(key) || strings.HasPrefix(key, "unused"):
		case w.busyInGuest(key):
			takes += busyTime
		case optionName(key) == "scsi" && v.config["scsihw"] == "virtio-scsi-single" && !w.guestCooperates():
			takes += controllerTime
		default:
			takes += hotplugTime
		}
	}
	return takes
}

func isDevice(key string) bool {
	return slices.Contains([]string{"scsi", "virtio", "net"}, optionName(key))
}

// guestCooperates reports whether guests release a PCI device on request. Without firmware no guest runs that could.
func (w *World) guestCooperates() bool { return w.firmware != nil }

// busyInGuest reports whether a device can't be unplugged: the guest must release network cards and virtio disks,
// which are PCI devices, but not SCSI disks.
func (w *World) busyInGuest(key string) bool {
	return !w.guestCooperates() && slices.Contains([]string{"net", "virtio"}, optionName(key))
}

// isBootDisk reports whether a drive is in the boot order (get_bootdisks in Drive.pm).
func (v *vm) isBootDisk(key string) bool {
	return isDriveKey(key) && slices.Contains(bootOrder(v.config["boot"]), key)
}

// hotplug applies pending changes to a running VM: keys that were just modified, and keys that don't affect the
// process. Changes that fail are returned and stay pending: a deletion is then done when the VM stops
// (vmconfig_hotplug_pending in QemuServer.pm).
func (w *World) hotplug(user string, v *vm, modified map[string]bool) (wrong map[string]string) {
	wrong = map[string]string{}
	problem := func(key string, err error) { wrong[key] = fmt.Sprintf("hotplug problem - %v\n", err) }
	for _, key := range slices.SortedFunc(maps.Keys(v.pending), compareKeys) {
		if fastPlugged(key) {
			w.applySet(v, key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(v.pendingDelete), compareKeys) {
		if !modified[key] || !isDevice(key) && !fastPlugged(key) {
			continue
		}
		if err := w.unplug(v, key); err != nil {
			problem(key, err)
		} else if err := w.applyDelete(user, v, key); err != nil {
			problem(key, err)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(v.pending), compareKeys) {
		if !modified[key] {
			continue
		}
		if now, err := w.plug(v, key, v.pending[key]); err != nil {
			problem(key, err)
		} else if now {
			w.applySet(v, key)
		}
	}
	return wrong
}

func (w *World) unplug(v *vm, key string) error {
	if v.isBootDisk(key) {
		return fmt.Errorf("can't unplug bootdisk '%s'", key)
	}
	if w.busyInGuest(key) {
		return fmt.Errorf("error on hot-unplugging device '%s' - still busy in guest?", key)
	}
	return nil
}

// fastPlugged lists the options that don't affect a running process.
func fastPlugged(key string) bool {
	return isCloudInitOption(key) || slices.Contains([]string{
		"description", "hookscript", "lock", "migrate_downtime", "migrate_speed", "name", "onboot", "protection", "shares",
		"startup", "tags", "vmstatestorage",
	}, key)
}

// plug reports whether a value can be applied while the VM runs.
func (w *World) plug(v *vm, key, value string) (now bool, err error) {
	old, had := v.config[key]
	switch {
	case key == "cpuunits" || key == "cpulimit":
		return true, nil
	case key == "balloon":
		return had && (old == "0") == (value == "0") || !had && value != "0", nil
	case optionName(key) == "net":
		return w.plugNet(v, key, old, value)
	case !isDriveKey(key) || key == "efidisk0" || key == "tpmstate0":
		return false, nil
	case had && isCDROM(key, old) != isCDROM(key, value):
		return false, fmt.Errorf("unable to change media type")
	case had && isCDROM(key, old):
		return true, nil // Proxmox changes the medium
	case had && driveVolid(key, old) == driveVolid(key, value):
		return !changesDevice(key, old, value), nil
	case had:
		if err := w.unplug(v, key); err != nil {
			return false, err
		}
	}
	return isDevice(key), nil
}

// plugNet applies a change of a network card: a bridge can be changed on the host; another card model requires an
// unplug first.
func (w *World) plugNet(v *vm, key, old, value string) (now bool, err error) {
	model := func(card string) string { first, _, _ := strings.Cut(card, ","); return first }
	if old != "" && model(old) != model(value) {
		if err := w.unplug(v, key); err != nil {
			return false, err
		}
	}
	if bridge := property(value, "bridge"); bridge != "" && !w.hasBridge(bridge) {
		return false, fmt.Errorf("bridge '%s' does not exist", bridge)
	}
	return true, nil
}

// hasBridge reports whether the hosts have a bridge: the default bridge, or the bridge of a VNet.
func (w *World) hasBridge(name string) bool {
	return name == LocalBridge || w.zoneOf(name) != localZone
}

// checkNetworks checks that the bridges exist; only a start makes this check.
func (w *World) checkNetworks(v *vm) error {
	for _, key := range slices.SortedFunc(maps.Keys(v.config), compareKeys) {
		if bridge := property(v.config[key], "bridge"); optionName(key) == "net" && bridge != "" && !w.hasBridge(bridge) {
			return failf("bridge '%s' does not exist", bridge)
		}
	}
	return nil
}

// changesDevice reports whether two values differ in options that vmconfig_update_disk in QemuServer.pm leaves to the
// next start. A serial is not among them: Proxmox stores a new serial at once, while the guest keeps the old one.
func changesDevice(key, old, value string) bool {
	a, errA := parseDrive(key, old)
	b, errB := parseDrive(key, value)
	if errA != nil || errB != nil {
		return true
	}
	fixed := []string{"aio", "cache", "discard", "iothread", "product", "queues", "ro", "ssd", "vendor"}
	return slices.ContainsFunc(fixed, func(o string) bool { return a.options[o] != b.options[o] })
}

// Media is the content of a volume: the bytes of a disk or of an ISO. It holds only what was written; a blank disk
// has no bytes, whatever its size. Large uploads and downloads are in a file.
type Media struct {
	mu    lock
	bytes []byte
	file  *os.File // unlinked; nil: the content is in bytes
	size  int64
	sum   string // SHA-256 of the content; "": not computed yet
	wrote uint64 // number of writes
}

// NewMedia returns media holding b. The media keeps b.
func NewMedia(b []byte) *Media { return &Media{bytes: b, size: int64(len(b))} }

// Bytes returns what was written, or nil if the content can't be read. The caller must not change the bytes.
func (m *Media) Bytes() []byte {
	defer m.mu.looking()()
	if m.file == nil {
		return m.bytes
	}
	b := make([]byte, m.size)
	if _, err := m.file.ReadAt(b, 0); err != nil {
		return nil
	}
	return b
}

// Write replaces the content; the media keeps b.
func (m *Media) Write(b []byte) {
	defer m.mu.changing()()
	m.bytes, m.file, m.size, m.sum = b, nil, int64(len(b)), ""
	m.wrote++
}

// Writes counts how often the content was replaced.
func (m *Media) Writes() uint64 {
	defer m.mu.looking()()
	return m.wrote
}

// Size returns how many bytes were written.
func (m *Media) Size() int64 {
	defer m.mu.looking()()
	return m.size
}

// Open reads the present content from its beginning.
func (m *Media) Open() io.Reader { return m.content() }

func (m *Media) content() *io.SectionReader {
	defer m.mu.looking()()
	if m.file == nil {
		return io.NewSectionReader(bytes.NewReader(m.bytes), 0, m.size)
	}
	return io.NewSectionReader(m.file, 0, m.size)
}

// SHA256 returns the hex digest of the content.
func (m *Media) SHA256() string {
	defer m.mu.looking()()
	if m.file != nil {
		h := sha256.New()
		_, _ = io.Copy(h, io.NewSectionReader(m.file, 0, m.size)) // a hash never fails; a partial read changes the digest
		return hex.EncodeToString(h.Sum(nil))
	}
	if m.sum == "" {
		sum := sha256.Sum256(m.bytes)
		m.sum = hex.EncodeToString(sum[:])
	}
	return m.sum
}

func (m *Media) replace(other *Media) {
	other.mu.Lock()
	b, file, size, sum := other.bytes, other.file, other.size, other.sum
	other.mu.Unlock()
	defer m.mu.changing()()
	m.bytes, m.file, m.size, m.sum = b, file, size, sum
	m.wrote++
}

// spoolInMemory is the most bytes that a spool keeps in memory.
const spoolInMemory = 1 << 20

// Spool is a file on its way to a storage. It takes space on the host where it is written; the host may have no space
// left. The caller closes the spool.
type Spool struct {
	// Name is the file's path on its host: "/var/tmp/pveupload-0123…".
	Name string

	media *Media
	room  func(more int64) bool // allocates space; false: none was left, and none is allocated
}

// NewSpool makes a file in /var/tmp of a host, on the host's root disk.
func (w *World) NewSpool(host string) *Spool {
	defer w.mu.changing()()
	w.lastPID++
	name := fmt.Sprintf("/var/tmp/pveupload-%x", md5.Sum(fmt.Append(nil, host, w.lastPID)))
	return &Spool{Name: name, media: NewMedia(nil), room: func(more int64) bool { return w.takeRoot(host, more) }}
}

// Write appends p, or nothing if the disk is full.
func (s *Spool) Write(p []byte) (int, error) {
	if !s.room(int64(len(p))) {
		return 0, syscall.ENOSPC
	}
	m := s.media
	defer m.mu.changing()()
	if m.file == nil && m.size+int64(len(p)) <= spoolInMemory {
		m.bytes, m.size, m.sum = append(m.bytes, p...), m.size+int64(len(p)), ""
		m.wrote++
		return len(p), nil
	}
	if m.file == nil {
		if err := m.toFile(); err != nil {
			return 0, err
		}
	}
	n, err := m.file.WriteAt(p, m.size)
	m.size += int64(n)
	if err != nil {
		return n, fmt.Errorf("write spool: %w", err)
	}
	return n, nil
}

// SpooledMedia returns media holding b, in a file if b exceeds spoolInMemory.
func SpooledMedia(b []byte) (*Media, error) {
	m := NewMedia(b)
	if m.size <= spoolInMemory {
		return m, nil
	}
	return m, m.toFile()
}

// toFile moves the content to an unlinked file, which exists until the last reference is gone; mu must be held.
func (m *Media) toFile() error {
	f, err := os.CreateTemp("", "recast-lab-spool-*")
	if err != nil {
		return fmt.Errorf("make spool: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return fmt.Errorf("make spool: %w", err)
	}
	if _, err := f.WriteAt(m.bytes, 0); err != nil {
		return fmt.Errorf("write spool: %w", err)
	}
	m.bytes, m.file = nil, f
	return nil
}

// Size returns the number of bytes written.
func (s *Spool) Size() int64 { return s.media.Size() }

// Close frees the space. Copies elsewhere stay.
func (s *Spool) Close() { s.room(-s.media.Size()) }
