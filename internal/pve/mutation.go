package pve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// mutation is one change, and what is needed to find out what became of it when
// its answer is lost.
type mutation struct {
	method, path string
	params       map[string]string

	worker worker // "" as its kind where the answer comes when all is done
	clean  bool   // a worker that ends with warnings has failed
	slot   bool   // the worker changes storages or configurations: see slots

	// repeatable says that Proxmox refuses a second one, because of its digest, the
	// VMID that it takes, or the state that it asks for: sent twice, it is done once.
	repeatable bool
	// lockable says that it goes on when whoever has locked the VM lets go of it.
	// With a digest it cannot: the lock is part of the configuration.
	lockable bool

	look func(ctx context.Context) (sight, error)
	// unseen says that a worker which ends well has done it, whatever look says:
	// its effect comes later.
	unseen bool
}

// carryOut makes a change and returns when it is done. An answer that is lost is
// looked for in the world; a change that certainly did not happen is sent once
// more where that is safe. A lock that somebody else holds is waited for.
func (c *Client) carryOut(ctx context.Context, m mutation) error {
	if m.slot {
		release, err := c.slots.take(ctx, m.worker.host)
		if err != nil {
			return fmt.Errorf("wait for other tasks of ours on %s: %w", m.worker.host, err)
		}
		defer release()
	}
	return c.pastLocks(ctx, m, func() error { return c.once(ctx, m) })
}

// once makes a change once, however often it has to be sent.
func (c *Client) once(ctx context.Context, m mutation) error {
	sent := time.Now()
	upid, err := c.submit(ctx, m)
	if !errors.Is(err, cluster.ErrLostAnswer) || ctx.Err() != nil {
		return err
	}
	again, err := c.findOut(ctx, m, upid, sent, err)
	if !again || ctx.Err() != nil {
		return err
	}
	cluster.NoteUnanswered(ctx) // it may come yet, after the second one
	upid, err = c.submit(ctx, m)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// It may also be the first one, late, that the second one runs into.
	_, err = c.findOut(ctx, m, upid, sent, err)
	return err
}

// submit sends a change and waits for its worker, whose name it returns where
// there was one.
func (c *Client) submit(ctx context.Context, m mutation) (upid string, err error) {
	if m.worker.kind == "" {
		return "", c.change(ctx, m.method, m.path, m.params, nil)
	}
	if err := c.change(ctx, m.method, m.path, m.params, &upid); err != nil {
		return "", err
	}
	if _, err := ParseUPID(upid); err != nil {
		return "", fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	return upid, c.end(ctx, m, upid)
}

// end waits for the worker of a change.
func (c *Client) end(ctx context.Context, m mutation, upid string) error {
	if m.clean {
		return c.finishClean(ctx, upid, nil)
	}
	return c.finish(ctx, upid, nil)
}
