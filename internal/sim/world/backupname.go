package world

import (
	"path"
	"regexp"
	"strconv"
)

var backupFile = regexp.MustCompile(`^vzdump-qemu-(\d+)-.+`)

// backupOwner is the VM that a backup's name or volid says it is of; 0 for everything else.
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
