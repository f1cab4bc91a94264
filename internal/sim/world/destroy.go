package world

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// DestroyRequest asks for a VM's deletion.
type DestroyRequest struct {
	ID           int
	Purge        bool // remove it from HA, backup and replication jobs too
	Unreferenced bool // also free every volume named for it, even if used elsewhere
}

// DestroyVM deletes a VM and its own volumes: checks at once, the rest in a task.
func (w *World) DestroyVM(user, host string, r DestroyRequest) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Purge {
		w.violate("DELETE of VM %d with purge", r.ID)
	}
	if r.Unreferenced {
		w.violate("DELETE of VM %d with destroy-unreferenced-disks", r.ID)
	}
	if err := w.check(user, vmPath(r.ID), "VM.Allocate"); err != nil {
		return "", err
	}
	if err := w.checkDestroy(host, r); err != nil {
		return "", err
	}
	return w.startTask(host, "qmdestroy", strconv.Itoa(r.ID), user, func(t *task) error {
		unlock, err := w.lockConfig(r.ID)
		if err != nil {
			return err
		}
		defer unlock()
		if err := t.begin(taskTime); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if err := w.checkDestroy(host, r); err != nil {
			return err
		}
		return w.destroy(t, w.vms[r.ID], r)
	}), nil
}

func (w *World) checkDestroy(host string, r DestroyRequest) error {
	v, err := w.vmOn(host, r.ID)
	if err != nil {
		return err
	}
	if v.config["protection"] == "1" {
		return failf("can't remove VM %d - protection mode enabled", r.ID)
	}
	if w.haStatus(r.ID).Configured && !r.Purge {
		return failf("unable to remove VM %d - used in HA resources and purge parameter not set.", r.ID)
	}
	if job := w.replicates(r.ID); job != "" && !r.Purge {
		return failf("There is a replication job '%s' for guest '%d' - Please remove that first.", job, r.ID)
	}
	if v.proc != nil {
		return failf("VM %d is running - destroy failed", r.ID)
	}
	return nil
}

// destroy frees first and then writes: without quorum the disks are gone and the
// configuration stays.
func (w *World) destroy(t *task, v *vm, r DestroyRequest) error {
	if err := v.checkLock(); err != nil {
		return err
	}
	if err := w.checkClones(v); err != nil {
		return err
	}
	for _, volid := range v.destroyedVolids() {
		if volumeOwner(volid) != v.id {
			continue
		}
		if err := w.freeVolume(volid, v.host); err != nil {
			t.warnf("Could not remove disk '%s', check manually: %v", volid, err)
		}
	}
	if r.Unreferenced {
		w.freeUnreferenced(v)
	}
	if err := w.writeConfig(v); err != nil {
		return err
	}
	if r.Purge {
		if w.ha[haSID(v.id)] != nil {
			w.removeHA(haSID(v.id))
			t.logf("NOTE: removed VM %d from HA resource configuration.", v.id)
		}
		w.purgeJobs(v.id)
	}
	delete(w.firewalls, v.id)
	w.acls = slices.DeleteFunc(w.acls, func(a ACL) bool { return a.Path == vmPath(v.id) })
	w.privilegeCache = nil
	delete(w.vms, v.id)
	return nil
}

// checkClones refuses to delete a template that has linked clones.
func (w *World) checkClones(v *vm) error {
	if v.config["template"] != "1" {
		return nil
	}
	for _, key := range driveKeys(v.config) {
		d, err := parseDrive(key, v.config[key])
		if err != nil || d.empty() || d.cdrom() {
			continue
		}
		if s, vol, err := w.volume(d.volid, v.host); err == nil && s != nil && s.cloned(v.host, vol) {
			return failf("base volume '%s' is still in use by linked cloned", d.volid)
		}
	}
	return nil
}

func (w *World) freeUnreferenced(v *vm) {
	for _, s := range w.storages {
		if s.on(v.host) {
			for name := range s.at(v.host) {
				if volumeOwner(name) == v.id {
					_ = w.freeVolume(s.ID+":"+name, v.host) // Proxmox only warns
				}
			}
		}
	}
}

// destroyedVolids lists the volumes to free if they are the VM's own: those in the
// configuration, pending changes included, and the memory of snapshots. Volumes that only
// a snapshot's disks name are left behind (destroy_vm in QemuServer.pm).
func (v *vm) destroyedVolids() []string {
	seen := map[string]bool{}
	add := func(config map[string]string) {
		for _, key := range driveKeys(config) {
			if d, err := parseDrive(key, config[key]); err == nil && !d.empty() {
				seen[d.volid] = true
			}
		}
	}
	add(v.config)
	add(v.pending)
	for _, s := range v.snapshots {
		if state := s.Config["vmstate"]; state != "" {
			seen[state] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// DeleteVolume deletes a volume of a storage, in use or not, in a task.
func (w *World) DeleteVolume(user, host, volid string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	storageID, _, _ := strings.Cut(volid, ":")
	if err := w.check(user, "/storage/"+storageID, "Datastore.Allocate"); err != nil {
		return "", err
	}
	if _, err := w.storageOn(storageID, host); err != nil {
		return "", err
	}
	id := storageID // not the volume's name: API2/Storage/Content.pm
	if owner := volumeOwner(volid); owner != 0 {
		id = strconv.Itoa(owner) + "@" + storageID
	}
	return w.startTask(host, "imgdel", id, user, func(t *task) error {
		if err := t.begin(taskTime / 2); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, _, err := w.volume(volid, host); err != nil {
			t.logf("%v", err)
			return nil
		}
		if err := w.freeVolume(volid, host); err != nil {
			return err
		}
		t.logf("Removed volume '%s'", volid)
		return nil
	}), nil
}
