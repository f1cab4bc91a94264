package main

import "golang.org/x/sys/unix"

func dropInput(fd int) error { return unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) }
