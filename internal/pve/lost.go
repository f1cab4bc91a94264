package pve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/wait"
)

const (
	// searchTime bounds how long the world is asked what became of a change,
	// Proxmox being out of reach included.
	searchTime = 2 * time.Minute
	// lateness is how long a change whose answer was lost may take to show itself or
	// its worker. Whoever gets a request waits up to 10 s for the VM's lock
	// (Qemu.pm, create_vm), then starts the worker.
	lateness = 15 * time.Second
	// writeLateness is the same for a change without a worker that can be sent
	// again: the one that comes second is refused, whichever that is.
	writeLateness = 5 * time.Second
	// settled is how long after a worker's end its goal may take to show on every host.
	settled = 10 * time.Second
)

// state is how far a change has come, as far as the world shows.
type state int

const (
	untouched  state = iota // all is as it was before
	between                 // neither as before nor as wanted
	superseded              // somebody else's change made ours impossible
	reached                 // all is as wanted
)

// sight is what was seen of a change.
type sight struct {
	state state
	what  string
	is    error // what a superseding change amounts to
}

// findOut learns what became of a change whose answer did not come: of its
// worker if there is one, of its goal otherwise. The error is nil when it was
// done, and the worker's own when that failed. again says that it did not
// happen and can be sent once more; the error is then the one it was given.
func (c *Client) findOut(ctx context.Context, m mutation, known string, sent time.Time, lost error) (again bool, err error) {
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
		if m.unseen && upid == "" { // somebody else may have done the same
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

// trace looks for the worker of a change and at its goal, until one of them
// shows or could have shown.
func (c *Client) trace(ctx context.Context, m mutation, sent time.Time) (upid string, seen sight, err error) {
	var since time.Time // when the world first answered
	late := lateness
	if m.worker.kind == "" && m.repeatable {
		late = writeLateness
	}
	w := wait.For{Name: "find out whether it happened", Every: c.poll, Timeout: searchTime}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		var err error
		if m.worker.kind != "" {
			if upid, err = c.startedSince(ctx, m.worker, sent); err != nil {
				return false, "", stopOnAnswer(err)
			}
			if upid != "" {
				return true, "", nil
			}
		}
		if seen, err = m.look(ctx); err != nil {
			return false, "", stopOnAnswer(err)
		}
		if since.IsZero() {
			since = time.Now()
		}
		// One write makes a change without a worker: then nothing comes after somebody else's.
		final := seen.state == reached || seen.state == superseded && m.worker.kind == ""
		return final || time.Since(since) >= late, seen.what, nil
	})
	return upid, seen, err
}

// watch looks at the goal of a change whose worker has ended, or cannot be
// asked any more.
func (c *Client) watch(ctx context.Context, m mutation) (seen sight, err error) {
	var since time.Time
	w := wait.For{Name: "see what it has come to", Every: c.poll, Timeout: searchTime}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		var err error
		if seen, err = m.look(ctx); err != nil {
			return false, "", stopOnAnswer(err)
		}
		if since.IsZero() {
			since = time.Now()
		}
		return seen.state == reached || time.Since(since) >= settled, seen.what, nil
	})
	return seen, err
}
