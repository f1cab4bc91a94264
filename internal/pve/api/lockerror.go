package api

import (
	"errors"
	"net/http"
	"regexp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

var (
	// lockTimeout matches a lock that was not acquired in time (PVE/Tools.pm,
	// lock_file_full; pve-cluster, Cluster.pm, cfs_lock). It must be the whole
	// message: within a longer one, or for one parameter of several, other work was
	// done.
	lockTimeout = regexp.MustCompile(`^(?:unable to create VM \d+ - )?(?:can't lock file '[^']+' - got timeout|cfs-lock '[^']+' error: got lock request timeout)\s*$`)
	// vmLocked matches the lock in a VM's configuration (AbstractConfig.pm,
	// check_lock).
	vmLocked = regexp.MustCompile(`^(?:VM|CT) is locked(?: \([^()]*\))?\s*$`)
)

// IsLockTimeout reports whether nothing was done because a lock was not acquired.
func IsLockTimeout(err error) bool { return isLock(err, lockTimeout) }

// IsVMLocked reports whether nothing was done because of the lock in a VM's configuration.
func IsVMLocked(err error) bool { return isLock(err, vmLocked) }

func isLock(err error, what *regexp.Regexp) bool {
	if errors.Is(err, cluster.ErrLostAnswer) {
		return false
	}
	if e, ok := errors.AsType[*TaskError](err); ok {
		return what.MatchString(e.Exit)
	}
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusInternalServerError && len(e.Params) == 0 && what.MatchString(e.Said())
}

// hintLock says what to do about a lock.
func hintLock(err error) error {
	switch {
	case IsVMLocked(err):
		return fault.WithHint(fault.VMLocked.Of(err), "a backup, a migration or a snapshot holds the VM's lock, or failed and left it: wait for it; "+
			"qm unlock removes the lock, which is right only if no task of the VM is running")
	case IsLockTimeout(err):
		return fault.WithHint(fault.VMLocked.Of(err), "Proxmox is at work on the same VM or storage: see its running tasks, then run this again")
	}
	return err
}
