package world

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// applyPending makes the pending changes of a stopped VM its configuration.
func (w *World) applyPending(v *vm) {
	for _, key := range slices.SortedFunc(maps.Keys(v.pendingDelete), compareKeys) {
		w.applyDelete(v, key)
	}
	for _, key := range slices.SortedFunc(maps.Keys(v.pending), compareKeys) {
		w.applySet(v, key)
	}
}

// applyDelete carries out a deletion: an owned volume becomes unusedN, or is
// freed where that was forced; another VM's volume just loses its key.
func (w *World) applyDelete(v *vm, key string) {
	force := v.pendingDelete[key]
	delete(v.pendingDelete, key)
	if isDriveKey(key) {
		w.release(v, v.config[key], key, force)
	}
	delete(v.config, key)
	v.dropFromBoot(key)
	v.tidyUnused()
}

func (w *World) applySet(v *vm, key string) {
	value := v.pending[key]
	delete(v.pending, key)
	old, had := v.config[key]
	v.config[key] = value
	if had && isDriveKey(key) && driveVolid(key, old) != driveVolid(key, value) {
		w.release(v, old, key, false)
	}
	v.tidyUnused()
	w.violateSharing(v)
}

// dropFromBoot takes a key that is gone out of the boot order.
func (v *vm) dropFromBoot(key string) {
	if boot, ok := v.config["boot"]; ok {
		v.config["boot"] = withoutBoot(boot, key)
	}
}

// release lets go of the volume behind a drive value that no key has any more.
func (w *World) release(v *vm, value, key string, force bool) {
	d, err := parseDrive(key, value)
	owned := err == nil && !d.empty() && volumeOwner(d.volid) == v.id
	if !owned || d.cdrom() && !isCloudInit(d.volid) {
		return
	}
	force = force || isCloudInit(d.volid)
	if force && !v.inSnapshot(d.volid) {
		if w.freeVolume(d.volid, v.host) == nil {
			return
		}
	}
	v.addUnused(d.volid)
}

// addUnused keeps a volume under the lowest free unusedN; its options are lost.
func (v *vm) addUnused(volid string) {
	for key, value := range v.config {
		if strings.HasPrefix(key, "unused") && value == volid {
			return
		}
	}
	for n := 0; ; n++ {
		key := fmt.Sprintf("unused%d", n)
		if _, taken := v.config[key]; !taken {
			v.config[key] = volid
			return
		}
	}
}

// tidyUnused drops unusedN keys whose volume is in use by a drive again.
func (v *vm) tidyUnused() {
	used := map[string]bool{}
	for _, key := range driveKeys(v.config) {
		if !strings.HasPrefix(key, "unused") {
			used[driveVolid(key, v.config[key])] = true
		}
	}
	maps.DeleteFunc(v.config, func(key, value string) bool {
		return strings.HasPrefix(key, "unused") && used[value]
	})
}

func driveVolid(key, value string) string {
	d, err := parseDrive(key, value)
	if err != nil {
		return ""
	}
	return d.volid
}

// hotplug applies the pending changes that a running VM can take. What fails
// is reported and stays pending: a deletion will then happen when the VM stops.
func (w *World) hotplug(v *vm) error {
	wrong := map[string]string{}
	for _, key := range slices.SortedFunc(maps.Keys(v.pendingDelete), compareKeys) {
		switch {
		case !hotpluggable(key) || isCDROM(key, v.config[key]):
		case slices.Contains(v.proc.hw.BootOrder, key) && isDriveKey(key):
			wrong[key] = fmt.Sprintf("hotplug problem - can't unplug bootdisk '%s'\n", key)
		default:
			w.applyDelete(v, key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(v.pending), compareKeys) {
		if v.canPlug(key, v.pending[key]) {
			w.applySet(v, key)
		}
	}
	if len(wrong) > 0 {
		return badParams(wrong)
	}
	return nil
}

// hotpluggable lists what Proxmox changes on a running VM with its default hotplug=network,disk,usb.
func hotpluggable(key string) bool {
	switch optionName(key) {
	case "scsi", "virtio", "net", "usb", "unused",
		"name", "onboot", "shares", "startup", "description", "protection", "vmstatestorage", "hookscript", "tags", "lock":
		return true
	}
	return false
}

// canPlug says whether a value can be applied while the VM runs.
func (v *vm) canPlug(key, value string) bool {
	old, had := v.config[key]
	if !isDriveKey(key) {
		return hotpluggable(key)
	}
	if isCDROM(key, value) {
		return had && isCDROM(key, old) // another medium; a new drive waits
	}
	if !hotpluggable(key) || had && isCDROM(key, old) {
		return false
	}
	if !had {
		return true
	}
	if driveVolid(key, old) != driveVolid(key, value) {
		return !slices.Contains(v.proc.hw.BootOrder, key)
	}
	return !changesDevice(key, old, value)
}

// changesDevice says that two values differ in what only a new device can have.
func changesDevice(key, old, value string) bool {
	a, errA := parseDrive(key, old)
	b, errB := parseDrive(key, value)
	if errA != nil || errB != nil {
		return true
	}
	fixed := []string{"aio", "cache", "detect_zeroes", "discard", "iothread", "product", "queues", "ro", "scsiblock", "serial", "ssd", "vendor", "wwn"}
	return slices.ContainsFunc(fixed, func(o string) bool { return a.options[o] != b.options[o] })
}
