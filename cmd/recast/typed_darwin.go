package main

import "golang.org/x/sys/unix"

// dropInput drops the unread input of a terminal.
func dropInput(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TIOCFLUSH, unix.TCIFLUSH) }
