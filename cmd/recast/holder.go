package main

import (
	"os"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// holder is this process, as a claim names it. Where the system has no /proc
// it has no Boot, and nobody ever takes it for dead.
func holder() cluster.Holder {
	h := cluster.Holder{PID: os.Getpid(), Boot: machineBoot(), Start: processStart(os.Getpid())}
	if name, err := os.Hostname(); err == nil {
		h.Host = name
	}
	return h
}

// dead says whether another holder was a process of this very boot and PID
// namespace and has ended. A PID that was given to another process has another start.
func dead(other cluster.Holder) bool {
	me := holder()
	if me.Boot == "" || other.Boot != me.Boot || other.Host != me.Host || other.Start == "" {
		return false
	}
	return processStart(other.PID) != other.Start
}

// machineBoot identifies the kernel's boot and the PID namespace: PIDs of another one mean nothing here.
func machineBoot() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + namespace
}

// processStart is when a process was started, in clock ticks since boot: the
// 22nd field of its stat (proc_pid_stat(5)). "" if there is no such process, or
// if it has ended and only waits to be reaped.
func processStart(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The second field, the name in parentheses, may hold anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}
