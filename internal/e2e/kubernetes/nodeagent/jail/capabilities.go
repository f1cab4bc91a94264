package jail

import (
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var capabilities = map[string]int{
	"CAP_AUDIT_CONTROL": unix.CAP_AUDIT_CONTROL, "CAP_AUDIT_READ": unix.CAP_AUDIT_READ, "CAP_AUDIT_WRITE": unix.CAP_AUDIT_WRITE,
	"CAP_BLOCK_SUSPEND": unix.CAP_BLOCK_SUSPEND, "CAP_BPF": unix.CAP_BPF, "CAP_CHECKPOINT_RESTORE": unix.CAP_CHECKPOINT_RESTORE,
	"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH,
	"CAP_FOWNER": unix.CAP_FOWNER, "CAP_FSETID": unix.CAP_FSETID, "CAP_IPC_LOCK": unix.CAP_IPC_LOCK, "CAP_IPC_OWNER": unix.CAP_IPC_OWNER,
	"CAP_KILL": unix.CAP_KILL, "CAP_LEASE": unix.CAP_LEASE, "CAP_LINUX_IMMUTABLE": unix.CAP_LINUX_IMMUTABLE,
	"CAP_MAC_ADMIN": unix.CAP_MAC_ADMIN, "CAP_MAC_OVERRIDE": unix.CAP_MAC_OVERRIDE, "CAP_MKNOD": unix.CAP_MKNOD,
	"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_NET_BROADCAST": unix.CAP_NET_BROADCAST,
	"CAP_NET_RAW": unix.CAP_NET_RAW, "CAP_PERFMON": unix.CAP_PERFMON, "CAP_SETFCAP": unix.CAP_SETFCAP, "CAP_SETGID": unix.CAP_SETGID,
	"CAP_SETPCAP": unix.CAP_SETPCAP, "CAP_SETUID": unix.CAP_SETUID, "CAP_SYSLOG": unix.CAP_SYSLOG, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN,
	"CAP_SYS_BOOT": unix.CAP_SYS_BOOT, "CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT, "CAP_SYS_MODULE": unix.CAP_SYS_MODULE,
	"CAP_SYS_NICE": unix.CAP_SYS_NICE, "CAP_SYS_PACCT": unix.CAP_SYS_PACCT, "CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE,
	"CAP_SYS_RAWIO": unix.CAP_SYS_RAWIO, "CAP_SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "CAP_SYS_TIME": unix.CAP_SYS_TIME,
	"CAP_SYS_TTY_CONFIG": unix.CAP_SYS_TTY_CONFIG, "CAP_WAKE_ALARM": unix.CAP_WAKE_ALARM,
}

// usual are the capabilities of a container that asks for nothing else. CAP_MKNOD is not
// among them, since no cgroup keeps the container from the machine's devices.
var usual = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW",
	"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// AllCapabilities are those of a privileged container.
func AllCapabilities() []string { return slices.Sorted(maps.Keys(capabilities)) }

// Capabilities applies a security context's lists, in which names have no CAP_ and ALL is
// all of them.
func Capabilities(add, drop []string) []string {
	kept := map[string]bool{}
	set := func(names []string, to bool) {
		for _, name := range names {
			if kept["CAP_"+strings.TrimPrefix(name, "CAP_")] = to; name != "ALL" {
				continue
			}
			delete(kept, "CAP_ALL")
			for _, each := range AllCapabilities() {
				kept[each] = to
			}
		}
	}
	set(usual, true)
	if slices.Contains(add, "ALL") {
		set([]string{"ALL"}, true)
	}
	if slices.Contains(drop, "ALL") {
		set([]string{"ALL"}, false)
	}
	set(slices.DeleteFunc(slices.Clone(add), func(name string) bool { return name == "ALL" }), true)
	set(slices.DeleteFunc(slices.Clone(drop), func(name string) bool { return name == "ALL" }), false)
	maps.DeleteFunc(kept, func(_ string, is bool) bool { return !is })
	return slices.Sorted(maps.Keys(kept))
}
