package machineconfig

import (
	"os"
	"syscall"
)

// statfs(2): the types of file systems in memory.
const (
	tmpfs = 0x01021994
	ramfs = 0x858458f6
)

// inMemory returns a directory whose files are in memory; the directory of temporary files if there is none.
func inMemory() string {
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/dev/shm"} {
		var fs syscall.Statfs_t
		if dir == "" || syscall.Statfs(dir, &fs) != nil || syscall.Access(dir, 7) != nil {
			continue
		}
		if kind := uint32(fs.Type); kind == tmpfs || kind == ramfs { //nolint:gosec // a magic number has 32 bits
			return dir
		}
	}
	return os.TempDir()
}
