package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/recast-sh/recast/cluster"
)

// holder is this process, as a claim names it.
func holder() cluster.Holder { return thisMachine().holder() }

// dead says whether another holder was a process of this machine that has ended.
func dead(other cluster.Holder) bool { return thisMachine().dead(other) }

// machine is what a process can tell of the other processes beside it.
type machine struct {
	proc   string              // where procfs is mounted
	pid    int                 // of this process
	signal func(pid int) error // kill(2) with signal 0: does the process exist?
}

func thisMachine() machine {
	return machine{proc: "/proc", pid: os.Getpid(), signal: func(pid int) error { return syscall.Kill(pid, 0) }}
}

// holder has no Boot and no Namespace where the system has no procfs (macOS), or
// where /proc shows the processes of another PID namespace. Nobody declares such a
// holder dead.
func (m machine) holder() cluster.Holder {
	h := cluster.Holder{PID: m.pid}
	if name, err := os.Hostname(); err == nil {
		h.Host = name
	}
	// A container may have the host's /proc: its numbers mean other processes there.
	if self, err := os.Readlink(filepath.Join(m.proc, "self")); err != nil || self != strconv.Itoa(m.pid) {
		return h
	}
	boot, err := os.ReadFile(filepath.Join(m.proc, "sys/kernel/random/boot_id"))
	if err != nil {
		return h
	}
	namespace, err := os.Readlink(filepath.Join(m.proc, "self/ns/pid"))
	if err != nil {
		return h
	}
	h.Boot, h.Namespace, h.Start = strings.TrimSpace(string(boot)), namespace, m.start(m.pid)
	return h
}

// dead is true only where the process provably does not exist: in the same boot and
// PID namespace, no process has its number, or one that was started at another time.
// Whatever hides a process leaves the answer false, and the heartbeat of its claim
// decides: procfs mounted with hidepid, another user's process (EPERM: it exists),
// and a process that has ended but still waits to be reaped.
func (m machine) dead(other cluster.Holder) bool {
	me := m.holder()
	switch {
	case me.Boot == "" || other.Boot != me.Boot, other.Namespace != me.Namespace, other.Host != me.Host:
		return false
	case other.PID <= 0: // kill(2) would mean a group
		return false
	case errors.Is(m.signal(other.PID), syscall.ESRCH):
		return true
	}
	start := m.start(other.PID)
	return start != "" && other.Start != "" && start != other.Start
}

// start is when a process was started, in clock ticks since boot: the 22nd field of
// its stat (proc_pid_stat(5)). "" where that cannot be read: there is no such
// process, or hidepid hides it.
func (m machine) start(pid int) string {
	b, err := os.ReadFile(filepath.Join(m.proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	// The second field, the name in parentheses, may hold anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}
