package attempt

import "syscall"

// dieWithParent ends recast with this process, whatever ends that: the pod that replaces this one
// must not meet it.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
