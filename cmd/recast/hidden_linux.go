package main

import "golang.org/x/sys/unix"

// hide makes the environment and memory of this process, which hold tokens, unreadable for other processes of its user
// and keeps them out of core dumps (PR_SET_DUMPABLE(2const), proc(5)). Programs that it starts are not affected:
// execve(2) makes a process dumpable again.
func hide() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }
