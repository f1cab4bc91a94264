package main

import "golang.org/x/sys/unix"

// dropInput drops what a terminal has got and nobody has read.
func dropInput(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TIOCFLUSH, unix.TCIFLUSH) }
