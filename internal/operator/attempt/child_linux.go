package attempt

import "syscall"

// dieWithParent ends recast with this process, whatever the cause: the pod that replaces this one must not meet a
// recast that still runs.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
