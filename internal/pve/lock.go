package pve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

const (
	// lockTime bounds how long a change is retried because of a lock.
	lockTime = 2 * time.Minute
	// lockPause is added to the 10 s that Proxmox itself waits for most locks.
	lockPause = 3 * time.Second
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

// isLock reports whether nothing was done because of a lock.
func isLock(err error, what *regexp.Regexp) bool {
	if errors.Is(err, cluster.ErrLostAnswer) {
		return false
	}
	if e, ok := errors.AsType[*TaskError](err); ok {
		return what.MatchString(e.Exit)
	}
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusInternalServerError && len(e.Params) == 0 && what.MatchString(e.said())
}

// retryLocked retries a change while a lock blocks it, as long as nothing else
// changed.
func retryLocked(ctx context.Context, m mutation, do func() error) error {
	start := time.Now()
	for {
		err := do()
		if !isLock(err, lockTimeout) && !(m.lockable && isLock(err, vmLocked)) || time.Since(start) >= lockTime {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lockPause):
		}
		seen, lookErr := m.look(ctx)
		switch {
		case lookErr != nil:
			return errors.Join(err, lookErr)
		case seen.state == reached && m.lockable:
			return nil // the VM is on, or off, whoever switched it
		case seen.is != nil:
			return fmt.Errorf("%w; %w: %s", err, seen.is, seen.what)
		case seen.state != untouched:
			return fmt.Errorf("%w; since then: %s", err, seen.what)
		}
	}
}

// hintLock says what to do about a lock.
func hintLock(err error) error {
	switch {
	case isLock(err, vmLocked):
		return fault.WithHint(fault.VMLocked.Of(err), "a backup, a migration or a snapshot holds the VM's lock, or failed and left it: wait for it; "+
			"qm unlock removes the lock, which is right only if no task of the VM is running")
	case isLock(err, lockTimeout):
		return fault.WithHint(fault.VMLocked.Of(err), "Proxmox is at work on the same VM or storage: see its running tasks, then run this again")
	}
	return err
}
