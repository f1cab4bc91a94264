package cluster

import (
	"context"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// Timing bounds the waits of a roll.
type Timing struct {
	Poll   time.Duration // pause between two looks at the world
	Settle time.Duration // how long a node must stay healthy
	Stop   time.Duration // guest shutdown, then the plug is pulled
	Boot   time.Duration // power on to maintenance mode
	Join   time.Duration // configuration applied to healthy
	Drain  time.Duration
}

// rarely is how many pauses long one may get while everything that is waited for
// is watched: a watch may be silent without being lost.
const rarely = 10

// Await looks until it is so, at the pace of t. It does not wait while our own
// credentials are wrong, which no waiting mends.
func (t Timing) Await(ctx context.Context, w wait.For, look wait.Look) error {
	w.Every, w.Watched = t.Poll, rarely*t.Poll
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		done, seen, err := look(ctx)
		if fault.KindOf(err) == fault.Config {
			err = wait.Stop(err)
		}
		return done, seen, err
	})
}

// AwaitTasks waits until list finds no task that is running.
func AwaitTasks(ctx context.Context, w wait.For, list func(context.Context) ([]string, error)) error {
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		running, err := list(ctx)
		return len(running) == 0, "running: " + strings.Join(running, ", "), wait.Stop(err)
	})
}
