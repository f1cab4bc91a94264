package main

import "golang.org/x/sys/unix"

// dropInput drops the unread input of a terminal.
func dropInput(fd int) error { return unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) }
