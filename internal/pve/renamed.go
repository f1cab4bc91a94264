package pve

import "regexp"

// busyRename is what pve-storage says of a volume that it could not rename because
// something had it in use for a moment, or because it took too long. LVM renames
// what is in use, and waits for its own locks: there is no such error of it.
var busyRename = regexp.MustCompile(`(?m)` +
	// ZFSPoolPlugin.pm, rename_volume, zfs_request: udev or multipathd has just opened
	// the device, a replication takes a snapshot. Proxmox itself tries again where it
	// destroys (zfs_delete_zvol), not where it renames.
	`^zfs error: cannot rename '[^']*': dataset is busy\s*$` +
	// The limit of 5 s that it asks for is one of 5 min in a worker (zfs_request). The
	// command is killed then (pve-common, Cmd.pm, run_command), what the kernel does is not.
	`|^command 'zfs rename [^']*' failed: got timeout\s*$` +
	// RBDPlugin.pm, rename_volume, run_rbd_command: another client holds the image, or
	// the cluster is slow.
	`|^could not rename image '[^']*' to '[^']*': rbd: rename error: \((?:16|110)\) ` +
	// Plugin.pm and BTRFSPlugin.pm, rename_volume: a file that a server of NFS or CIFS has open.
	`|^rename '[^']*' to '[^']*' failed - Device or resource busy\s*$`)
