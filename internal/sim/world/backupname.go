package world

import (
	"path"
	"regexp"
	"strconv"
)

var backupFile = regexp.MustCompile(`^vzdump-qemu-(\d+)-.+`)

// backupOwner is the VMID in a backup's name or volid; 0 for anything else.
func backupOwner(volid string) int {
	m := backupFile.FindStringSubmatch(path.Base(volid))
	if m == nil {
		return 0
	}
	id, err := strconv.Atoi(m[1])
	if err != nil {
		return 0
	}
	return id
}
