//go:build !linux

package attempt

import "syscall"

// dieWithParent does nothing outside Linux: containers run on Linux.
func dieWithParent() *syscall.SysProcAttr { return nil }
