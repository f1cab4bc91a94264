package api

import "regexp"

// busyRename matches pve-storage's errors for a volume that it could not rename
// because it was briefly in use, or because renaming took too long. LVM renames
// volumes in use and waits for its own locks: it has no such error.
var busyRename = regexp.MustCompile(`(?m)` +
	// ZFSPoolPlugin.pm, rename_volume, zfs_request: udev or multipathd has just
	// opened the device, or a replication takes a snapshot. Proxmox itself retries a
	// destroy (zfs_delete_zvol), but not a rename.
	`^zfs error: cannot rename '[^']*': dataset is busy\s*$` +
	// In a worker, the limit of 5 s becomes 5 min (zfs_request). The command is then
	// killed (pve-common, Cmd.pm, run_command), the kernel's work is not.
	`|^command 'zfs rename [^']*' failed: got timeout\s*$` +
	// RBDPlugin.pm, rename_volume, run_rbd_command: another client holds the image, or
	// the cluster is slow.
	`|^could not rename image '[^']*' to '[^']*': rbd: rename error: \((?:16|110)\) ` +
	// Plugin.pm and BTRFSPlugin.pm, rename_volume: a server of NFS or CIFS has the file open.
	`|^rename '[^']*' to '[^']*' failed - Device or resource busy\s*$`)
