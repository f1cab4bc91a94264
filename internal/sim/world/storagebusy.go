package world

import (
	"fmt"
	"path"
)

// RenameFault is how the rename of a volume that is briefly in use fails.
type RenameFault int

const (
	// RenameBusy fails at once without effect.
	RenameBusy RenameFault = iota + 1
	// RenameTimeout times out: the volume keeps its name.
	RenameTimeout
	// RenameTimeoutDone times out after the volume was renamed.
	RenameTimeoutDone
)

// BusyStorage makes the next n renames of a storage's volumes fail; n < 0: all until NoMoreFailures.
func (w *World) BusyStorage(id string, n int, fault RenameFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.storages[id]; ok {
		s.busy, s.busyAs = n, fault
	}
}

// busyRename is how the next rename fails; 0: it does not. LVM can rename logical volumes
// in use (lvrename), so it never fails there.
func (s *storage) busyRename() RenameFault {
	if s.busy == 0 || s.Type == "lvm" || s.Type == "lvmthin" {
		return 0
	}
	if s.busy > 0 {
		s.busy--
	}
	return s.busyAs
}

// rename renames a volume. It may fail after the rename.
func (s *storage) rename(host string, vol *volume, name string) error {
	from, fault := vol.name, s.busyRename()
	if fault == 0 || fault == RenameTimeoutDone {
		delete(s.at(host), vol.name)
		vol.name = name
		s.at(host)[vol.name] = vol
	}
	if fault != 0 {
		return s.renameError(fault, from, name)
	}
	return nil
}

// renameError is an error of pve-storage (ZFSPoolPlugin.pm, RBDPlugin.pm and Plugin.pm,
// rename_volume). A command that times out is killed (pve-common, Cmd.pm, run_command);
// only ZFS commands have a timeout (zfs_request).
func (s *storage) renameError(fault RenameFault, from, to string) error {
	switch {
	case s.Type == "zfspool" && fault == RenameBusy:
		return fmt.Errorf("zfs error: cannot rename '%s/%s': dataset is busy", s.Pool, path.Base(from))
	case s.Type == "zfspool":
		return fmt.Errorf("command 'zfs rename %s/%s %s/%s' failed: got timeout", s.Pool, path.Base(from), s.Pool, path.Base(to))
	case s.Type == "rbd" && fault == RenameBusy:
		return fmt.Errorf("could not rename image '%s' to '%s': rbd: rename error: (16) Device or resource busy", path.Base(from), path.Base(to))
	case s.Type == "rbd":
		return fmt.Errorf("could not rename image '%s' to '%s': rbd: rename error: (110) Connection timed out", path.Base(from), path.Base(to))
	}
	return fmt.Errorf("rename '%s' to '%s' failed - Device or resource busy", s.filePath(from), s.filePath(to))
}
