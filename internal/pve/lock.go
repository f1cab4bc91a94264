package pve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/internal/pve/api"
)

const (
	// lockTime bounds how long a change is retried because of a lock.
	lockTime = 2 * time.Minute
	// lockPause is added to the 10 s that Proxmox itself waits for most locks.
	lockPause = 3 * time.Second
)

// retryLocked retries a change while a lock blocks it, as long as nothing else
// changed.
func retryLocked(ctx context.Context, m mutation, do func() error) error {
	start := time.Now()
	for {
		err := do()
		if !api.IsLockTimeout(err) && !(m.lockable && api.IsVMLocked(err)) || time.Since(start) >= lockTime {
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
