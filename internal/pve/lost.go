package pve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

const (
	// searchTime bounds how long Proxmox is asked what became of a change, including
	// the time it is unreachable.
	searchTime = 2 * time.Minute
	// lateness is how long a change whose answer was lost may take to show itself or
	// its worker. The server waits up to 10 s for the VM's lock (Qemu.pm,
	// create_vm), then starts the worker.
	lateness = 15 * time.Second
	// writeLateness is the same for a repeatable change without a worker: whichever
	// of two requests comes second is refused.
	writeLateness = 5 * time.Second
	// settled is how long after a worker's end its result may take to show on every
	// host.
	settled = 10 * time.Second
)

// state is how far a change has progressed, as observed.
type state int

const (
	untouched  state = iota // everything is as before
	partial                 // neither as before nor as wanted
	superseded              // another change made ours impossible
	reached                 // everything is as wanted
)

// sight is an observation of a change.
type sight struct {
	state state
	what  string
	is    error // the error that a superseding change amounts to
}

// findOut finds out what became of a change whose answer was lost: from its worker
// if there is one, otherwise from its goal. err is nil if the change was made, and
// the worker's error if that failed. again says that the change did not happen and
// can be sent again; err then wraps lost.
func (c *changer) findOut(ctx context.Context, m mutation, known string, sent time.Time, lost error) (again bool, err error) {
	upid, seen := known, sight{}
	if upid == "" {
		if upid, seen, err = c.trace(ctx, m, sent); err != nil {
			return false, fmt.Errorf("%w; %w", lost, err)
		}
	}
	if upid != "" && known == "" {
		err := c.end(ctx, m, upid)
		if err == nil && m.unseen || err != nil && !errors.Is(err, cluster.ErrLostAnswer) {
			return false, err
		}
		if err != nil {
			lost = err
		}
	}
	if upid != "" {
		if seen, err = c.watch(ctx, m); err != nil {
			return false, fmt.Errorf("%w; %w", lost, err)
		}
	}
	switch {
	case seen.state == reached:
		if m.unseen && upid == "" { // someone else may have done the same
			cluster.NoteUnanswered(ctx)
		}
		return false, nil
	case seen.state == superseded && seen.is != nil:
		return false, fmt.Errorf("%w; %w: %s", lost, seen.is, seen.what)
	case seen.state == untouched && upid == "":
		return m.repeatable && errors.Is(lost, cluster.ErrLostAnswer), fmt.Errorf("%w; since then: %s", lost, seen.what)
	}
	return false, fmt.Errorf("%w; since then: %s", lost, seen.what)
}

// trace looks for the change's worker and at its goal, until one of them shows or
// should have shown.
func (c *changer) trace(ctx context.Context, m mutation, sent time.Time) (upid string, seen sight, err error) {
	var since time.Time // when Proxmox first answered
	late := lateness
	if m.worker.kind == "" && m.repeatable {
		late = writeLateness
	}
	w := wait.For{Name: "find out whether it happened", Every: c.Poll, Timeout: searchTime}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		var err error
		if m.worker.kind != "" {
			if upid, err = c.tasks.startedSince(ctx, m.worker, sent); err != nil {
				return false, "", api.StopOnAnswer(err)
			}
			if upid != "" {
				return true, "", nil
			}
		}
		if seen, err = m.look(ctx); err != nil {
			return false, "", api.StopOnAnswer(err)
		}
		if since.IsZero() {
			since = time.Now()
		}
		// Without a worker the change is a single write: it cannot follow another
		// one.
		final := seen.state == reached || seen.state == superseded && m.worker.kind == ""
		return final || time.Since(since) >= late, seen.what, nil
	})
	return upid, seen, err
}

// watch polls the goal of a change whose worker has ended, or can no longer be
// asked.
func (c *changer) watch(ctx context.Context, m mutation) (seen sight, err error) {
	var since time.Time
	w := wait.For{Name: "check its outcome", Every: c.Poll, Timeout: searchTime}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		var err error
		if seen, err = m.look(ctx); err != nil {
			return false, "", api.StopOnAnswer(err)
		}
		if since.IsZero() {
			since = time.Now()
		}
		return seen.state == reached || time.Since(since) >= settled, seen.what, nil
	})
	return seen, err
}
