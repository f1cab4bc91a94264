package world

import (
	"maps"
	"slices"
	"strings"
)

// has says whether a key has a value, now or pending.
func (v *vm) has(key string) bool {
	_, set := v.config[key]
	_, waits := v.pending[key]
	return set || waits
}

// changing is a change in progress: update_vm_api in Qemu.pm.
type changing struct {
	w        *World
	user     string
	v        *vm
	r        ChangeRequest
	order    []string // the old boot order, without deleted keys and with new CD-ROM drives
	modified map[string]bool
}

// change is the worker: it writes option by option as pending into the file, deletions
// first, and finally applies what can be applied. After an error the earlier options stay
// pending, with the volumes allocated for them, even on a stopped VM. Proxmox takes the
// options in no particular order, the simulator by name.
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

// withReverts expands keys to be reverted as Proxmox does: it sets their current value
// again and deletes what is only pending. Other effects of a refused change, such as a
// boot order, stay.
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

// delete marks a key for deletion and removes it from the boot order; an unused volume and
// tags are deleted at once.
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

// setDrive resolves a drive. It appends a CD-ROM drive that the boot order lacks to the
// old order, so a boot= of the same request is lost if it came first, which is random in
// Proxmox. A cloud-init drive is not added (drive_is_cdrom with exclude_cloudinit, in
// Drive.pm).
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

// checkBoot requires the devices of a boot order to exist. Changes check that, creates do not.
func (c *changing) checkBoot(value string) error {
	for _, key := range bootOrder(value) {
		_, comes := c.r.Set[key]
		if !c.v.has(key) && !comes || slices.Contains(c.r.Delete, key) {
			return failf("invalid bootorder: device '%s' does not exist'", key)
		}
	}
	return nil
}

// cleanupPending drops pending changes that change nothing.
func (v *vm) cleanupPending() {
	maps.DeleteFunc(v.pending, func(key, value string) bool { now, set := v.config[key]; return set && now == value })
	maps.DeleteFunc(v.pendingDelete, func(key string, _ bool) bool { _, set := v.config[key]; return !set })
}
