package world

import (
	"fmt"
	"path"
)

// RenameFault is how a storage fails to rename a volume that is in use for a moment.
type RenameFault int

const (
	// RenameBusy fails at once and changes nothing.
	RenameBusy RenameFault = iota + 1
	// RenameTimeout ends a rename that takes too long: the volume keeps its name.
	RenameTimeout
	// RenameTimeoutDone does so when the volume has its new name already.
	RenameTimeoutDone
)

// BusyStorage makes the next n renames of volumes of a storage fail; n < 0: all until NoMoreFailures.
func (w *World) BusyStorage(id string, n int, fault RenameFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.storages[id]; ok {
		s.busy, s.busyAs = n, fault
	}
}

// busyRename is how a rename fails now; 0 where it does not. Renaming a logical
// volume that is in use is no trouble to LVM (lvrename), so that it never is there.
func (s *storage) busyRename() RenameFault {
	if s.busy == 0 || s.Type == "lvm" || s.Type == "lvmthin" {
		return 0
	}
	if s.busy > 0 {
		s.busy--
	}
	return s.busyAs
}

// rename gives a volume another name. Where it fails, it may have it all the same.
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

// renameError has the words of pve-storage: ZFSPoolPlugin.pm, RBDPlugin.pm and
// Plugin.pm, rename_volume. A command that takes too long is killed (pve-common,
// Cmd.pm, run_command); those of ZFS alone have a limit (zfs_request).
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
