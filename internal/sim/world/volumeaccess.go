package world

import (
	"cmp"
	"strings"
)

// checkDrives checks the form of drives that are set ($check_drive_param in Qemu.pm).
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
			if err := checkImportForm(key, d); err != nil {
				return err
			}
		}
		if _, name, _ := strings.Cut(d.volid, ":"); strings.HasPrefix(name, "iso/") && d.options["media"] != "cdrom" {
			return BadParam(key, "explicit 'media=cdrom' is required for iso images")
		}
	}
	return nil
}

// checkVolumes checks the volumes of drives that are set: space for new ones, access to
// existing ones ($check_storage_access in Qemu.pm).
func (w *World) checkVolumes(user string, id int, set map[string]string) error {
	for _, key := range driveKeys(set) {
		d, err := parseDrive(key, set[key])
		if err != nil {
			return err
		}
		if err := w.checkDriveVolume(user, id, key, d); err != nil {
			return err
		}
		if source := d.options["import-from"]; source != "" {
			if err := w.checkSource(user, id, key, source); err != nil {
				return err
			}
		}
	}
	if storageID := set["vmstatestorage"]; storageID != "" {
		return w.check(user, "/storage/"+storageID, "Datastore.AllocateSpace")
	}
	return nil
}

func (w *World) checkDriveVolume(user string, id int, key string, d drive) error {
	storageID, _, isRequest := d.request()
	switch {
	case d.volid == "none", isRequest && isCloudInit(d.volid):
		return nil
	case d.volid == "cdrom":
		return w.check(user, "/", "Sys.Console")
	case !isRequest:
		return w.checkAttached(user, id, key, d.volid)
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

// checkAttached checks the access to an existing volume, and that it can be a drive.
func (w *World) checkAttached(user string, id int, key, volid string) error {
	if err := w.checkVolume(user, id, volid); err != nil || !strings.Contains(volid, ":") {
		return err
	}
	if _, kind, _, err := w.kindOf(volid); err != nil || !attachable(kind) {
		return cmp.Or(err, BadParam(key, "content type needs to be 'images' or 'iso'"))
	}
	return nil
}

// checkVolume is the check before a volume is attached to VM id, or shown (id 0)
// (check_volume_access in Storage.pm).
func (w *World) checkVolume(user string, id int, volid string) error {
	storageID, _, ok := strings.Cut(volid, ":")
	if !ok {
		if user == "" || user == "root@pam" {
			return nil
		}
		return failf("Only root can pass arbitrary filesystem paths.")
	}
	_, kind, _, err := w.kindOf(volid)
	if err != nil {
		return err
	}
	owner, path := volumeOwner(volid), "/storage/"+storageID
	if w.check(user, path, "Datastore.Allocate") == nil {
		return nil
	}
	switch {
	case kind == isoKind, kind == templateKind, kind == importKind:
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

// CheckVolume is the check before a volume's attributes are shown.
func (w *World) CheckVolume(user, volid string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkVolume(user, 0, volid)
}

// MaySee says whether the content listing shows a volume to user.
func (w *World) MaySee(user, volid string) bool {
	w.mu.Look()
	defer w.mu.Unlock()
	return w.checkVolume(user, 0, volid) == nil
}
