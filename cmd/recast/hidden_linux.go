package main

import "golang.org/x/sys/unix"

// hide makes this process's environment and memory, in which tokens are, unreadable
// for other processes of its user (PR_SET_DUMPABLE(2const), proc(5)), and has none of
// it end up in a core dump. Programs that it starts are as any others: execve(2)
// makes a process dumpable again.
func hide() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }
