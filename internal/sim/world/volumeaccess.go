package world

import (
	"strings"
)

// checkDrives holds drives that are set against what Proxmox wants of their
// form ($check_drive_param in Qemu.pm).
func checkDrives(set map[string]string) error {
	for _, key := range driveKeys(set) {
		if strings.HasPrefix(key, "unused") {
			continue
		}
		d, err := parseDrive(key, set[key])
		if err != nil {
			return err
		}
		if d.options["import-from"] != "" {
			if _, size, ok := d.request(); !ok || size != 0 {
				return BadParam(key, "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>")
			}
		}
		if _, name, _ := strings.Cut(d.volid, ":"); strings.HasPrefix(name, "iso/") && d.options["media"] != "cdrom" {
			return BadParam(key, "explicit 'media=cdrom' is required for iso images")
		}
	}
	return nil
}

// checkVolumes checks the volumes behind the drives that are set: space where
// one is to be allocated, access where one is there already
// ($check_storage_access in Qemu.pm).
func (w *World) checkVolumes(user string, id int, set map[string]string) error {
	for _, key := range driveKeys(set) {
		d, err := parseDrive(key, set[key])
		if err != nil {
			return err
		}
		if err := w.checkDriveVolume(user, id, d); err != nil {
			return err
		}
		if source := d.options["import-from"]; source != "" {
			if err := w.checkSource(user, id, source); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *World) checkDriveVolume(user string, id int, d drive) error {
	storageID, _, isRequest := d.request()
	switch {
	case d.volid == "none", isRequest && isCloudInit(d.volid):
		return nil
	case d.volid == "cdrom":
		return w.check(user, "/", "Sys.Console")
	case !isRequest:
		return w.checkVolume(user, id, d.volid)
	}
	if err := w.check(user, "/storage/"+storageID, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	s, known := w.storages[storageID]
	if !known {
		return failf("storage '%s' does not exist", storageID)
	}
	if !s.holds("images") {
		return BadParam("storage", "storage '%s' does not support vm images", storageID)
	}
	return nil
}

// checkSource checks the right to copy a volume.
func (w *World) checkSource(user string, id int, source string) error {
	if owner := volumeOwner(source); strings.Contains(source, ":") && owner != 0 {
		return w.check(user, vmPath(owner), "VM.Clone")
	}
	return w.checkVolume(user, id, source)
}

// checkVolume is the check before a volume is attached to VM id, or shown (id 0)
// (check_volume_access in Storage.pm).
func (w *World) checkVolume(user string, id int, volid string) error {
	storageID, name, ok := strings.Cut(volid, ":")
	if !ok {
		if user == "" || user == "root@pam" {
			return nil
		}
		return failf("Only root can pass arbitrary filesystem paths.")
	}
	s, known := w.storages[storageID]
	if !known {
		return failf("storage '%s' does not exist", storageID)
	}
	owner, path := volumeOwner(volid), "/storage/"+storageID
	if owner == 0 && !isFile(volid) && !s.block() {
		return failf("unable to parse directory volume name '%s'", name)
	}
	if w.check(user, path, "Datastore.Allocate") == nil {
		return nil
	}
	switch {
	case isFile(volid):
		return w.check(user, path, "Datastore.AllocateSpace", "Datastore.Audit")
	case owner == 0:
		return failf("missing privileges to access %s", volid)
	case owner == id:
		return nil
	}
	if err := w.check(user, path, "Datastore.Audit"); err != nil {
		return err
	}
	return w.check(user, vmPath(owner), "VM.Config.Disk")
}

// MaySee says whether the content listing shows a volume to user.
func (w *World) MaySee(user, volid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkVolume(user, 0, volid) == nil
}
