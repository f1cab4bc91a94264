package pve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
)

// mutation is one change, with what is needed to find out its outcome if the answer
// is lost.
type mutation struct {
	method, path string
	params       map[string]string

	worker worker // kind "" if the answer comes only when all is done
	clean  bool   // a worker that ends with warnings has failed
	slot   bool   // the worker changes storages or configurations: see slots

	// repeatable says that Proxmox refuses a second request because of its digest,
	// VMID or requested state: sent twice, it is done once.
	repeatable bool
	// lockable says that the change can go on once the VM's lock is released. With a
	// digest it cannot: the lock is part of the configuration.
	lockable bool

	look func(ctx context.Context) (sight, error)
	// unseen says that a successful worker proves the change, whatever look says:
	// the effect shows later.
	unseen bool
}

// changer makes changes, and finds out what became of those whose answer is lost.
type changer struct {
	*api.Conn
	tasks *tasks
	slots slots
}

// carryOut makes a change and returns when it is done. If the answer is lost, it
// looks for the effect; a change that certainly did not happen is sent again where
// that is safe. It waits for locks that others hold.
func (c *changer) carryOut(ctx context.Context, m mutation) error {
	if m.slot {
		release, err := c.slots.take(ctx, m.worker.host)
		if err != nil {
			return fmt.Errorf("wait for our other tasks on %s: %w", m.worker.host, err)
		}
		defer release()
	}
	return retryLocked(ctx, m, func() error { return c.once(ctx, m) })
}

// once makes a change once, however often it has to be sent.
func (c *changer) once(ctx context.Context, m mutation) error {
	sent := time.Now()
	upid, err := c.submit(ctx, m)
	if !errors.Is(err, cluster.ErrLostAnswer) || ctx.Err() != nil {
		return err
	}
	again, err := c.findOut(ctx, m, upid, sent, err)
	if !again || ctx.Err() != nil {
		return err
	}
	cluster.NoteUnanswered(ctx) // the first one may still arrive, after the second
	upid, err = c.submit(ctx, m)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// The second one may also have collided with the first one, arriving late.
	_, err = c.findOut(ctx, m, upid, sent, err)
	return err
}

// submit sends a change and waits for its worker. It returns the worker's UPID if
// there was one.
func (c *changer) submit(ctx context.Context, m mutation) (upid string, err error) {
	if m.worker.kind == "" {
		return "", c.Change(ctx, m.method, m.path, m.params, nil)
	}
	if err := c.Change(ctx, m.method, m.path, m.params, &upid); err != nil {
		return "", err
	}
	if _, err := api.ParseUPID(upid); err != nil {
		return "", fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	return upid, c.end(ctx, m, upid)
}

// end waits for the worker of a change.
func (c *changer) end(ctx context.Context, m mutation, upid string) error {
	if m.clean {
		return c.tasks.await(ctx, upid)
	}
	return c.tasks.finish(ctx, upid)
}

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

// slotsPerHost bounds how many of our tasks change storages and configurations on
// one host at a time. They wait for each other's locks, and Proxmox gives up on a
// lock after 10 s (pve-cluster, Cluster.pm, cfs_lock): more tasks would fail, not be
// faster. Proxmox's own bulk actions use 4 (datacenter.cfg, max_workers).
const slotsPerHost = 4

// slots counts our tasks on each host. It is safe for concurrent use.
type slots struct{ hosts sync.Map }

// take waits for a free slot. The caller returns it with release.
func (s *slots) take(ctx context.Context, host string) (release func(), err error) {
	kept, _ := s.hosts.LoadOrStore(host, make(chan struct{}, slotsPerHost))
	slot := kept.(chan struct{})
	select {
	case slot <- struct{}{}:
		return func() { <-slot }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
