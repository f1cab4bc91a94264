//go:build !linux

package machineconfig

import "os"

// inMemory returns the directory of temporary files: the system has no file system in memory that every user could
// write to.
func inMemory() string { return os.TempDir() }
