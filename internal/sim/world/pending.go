package world

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// applyPending applies the pending changes of a stopped VM. Those that can't be applied are
// returned, and stay pending (vmconfig_apply_pending in QemuServer.pm).
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
		delete(v.config, key) // the file contains it no longer
	}
	if had && isDriveKey(key) {
		w.registerUnused(v, key, old)
	}
	v.tidyUnused()
	w.violateSharing(v)
}

// deallocate frees the volume of a deleted drive, if it is the VM's own and no other key
// of the VM uses it (try_deallocate_drive in QemuServer.pm).
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

// addUnused keeps a volume under the lowest free unusedN, which it returns, without its options.
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

// tidyUnused removes unusedN keys whose volume a drive uses again, as every write of the
// file does.
func (v *vm) tidyUnused() {
	used := map[string]bool{}
	for _, config := range []map[string]string{v.config, v.pending} {
		for _, key := range driveKeys(config) {
			if !strings.HasPrefix(key, "unused") {
				used[driveVolid(key, config[key])] = true
			}
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
