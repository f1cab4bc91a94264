// Package holder describes this process in the claim of a cluster, and reports whether another holder has ended or is
// suspended.
package holder

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/recast-sh/recast/cluster/claim"
)

// This returns this process as the holder of a claim.
func This() claim.Holder { return thisMachine().holder() }

// Dead reports whether another holder was a process of this machine that has ended.
func Dead(other claim.Holder) bool { return thisMachine().dead(other) }

// Suspended reports whether another holder is a process of this machine that is stopped, by Ctrl-Z or SIGSTOP.
func Suspended(other claim.Holder) bool { return thisMachine().suspended(other) }

// machine reads processes of this machine.
type machine struct {
	proc   string              // where procfs is mounted
	pid    int                 // of this process
	signal func(pid int) error // kill(2) with signal 0: does the process exist?
}

func thisMachine() machine {
	return machine{proc: "/proc", pid: os.Getpid(), signal: func(pid int) error { return syscall.Kill(pid, 0) }}
}

// holder returns this process as the holder of a claim. It leaves Boot and Namespace empty if the system has no procfs
// (macOS), or if /proc shows the processes of another PID namespace. A holder without them is never declared dead.
func (m machine) holder() claim.Holder {
	h := claim.Holder{PID: m.pid}
	if name, err := os.Hostname(); err == nil {
		h.Host = name
	}
	// A container may have the host's /proc, in which the container's PIDs mean other processes.
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

// dead reports whether the process provably does not exist: in the same boot and PID namespace, no process has its
// PID, or the process with its PID was started at another time, or the process has ended and was not reaped yet, as
// in a container whose first process reaps none. If the process is hidden, the answer is false and the heartbeat of
// its claim decides: procfs mounted with hidepid, and another user's process (EPERM: it exists).
func (m machine) dead(other claim.Holder) bool {
	switch {
	case !m.here(other):
		return false
	case errors.Is(m.signal(other.PID), syscall.ESRCH):
		return true
	}
	start := m.start(other.PID)
	return start != "" && other.Start != "" && (start != other.Start || m.ended(other.PID))
}

// ended reports whether a process has ended, with all its threads: a leader that has ended may leave other threads
// running.
func (m machine) ended(pid int) bool {
	fields := m.fields(pid)
	threads, err := os.ReadDir(filepath.Join(m.proc, strconv.Itoa(pid), "task"))
	return err == nil && len(threads) <= 1 && len(fields) > 0 && (fields[0] == "Z" || fields[0] == "X")
}

// here reports whether this process can ask about another holder's PID: the holder has the same boot and PID namespace.
func (m machine) here(other claim.Holder) bool {
	me := m.holder()
	return me.Boot != "" && other.Boot == me.Boot && other.Namespace == me.Namespace && other.Host == me.Host &&
		other.PID > 0 // kill(2) would mean a group
}

// suspended reports whether the same process exists and is stopped: in state T of proc_pid_stat(5).
func (m machine) suspended(other claim.Holder) bool {
	if !m.here(other) {
		return false
	}
	fields := m.fields(other.PID)
	return len(fields) > 0 && fields[0] == "T" && other.Start != "" && other.Start == m.start(other.PID)
}

// start returns when a process was started, in clock ticks since boot: the 22nd field of its stat (proc_pid_stat(5)).
// "" if the stat cannot be read: there is no such process, or hidepid hides the process.
func (m machine) start(pid int) string {
	fields := m.fields(pid)
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}

// fields returns the fields of a process' stat from the third on. The second field, the name in parentheses, may hold
// any characters.
func (m machine) fields(pid int) []string {
	b, err := os.ReadFile(filepath.Join(m.proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}
