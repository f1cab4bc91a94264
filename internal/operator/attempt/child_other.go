//go:build !linux

package attempt

import "syscall"

// dieWithParent is only for Linux, as containers are.
func dieWithParent() *syscall.SysProcAttr { return nil }
