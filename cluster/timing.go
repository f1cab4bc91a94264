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
	Poll   time.Duration // pause between two reads
	Settle time.Duration // how long a node must stay healthy
	Stop   time.Duration // guest shutdown, before the VM is switched off
	Boot   time.Duration // power on to maintenance mode
	Join   time.Duration // configuration applied to healthy
	Try    time.Duration // configuration on trial to healthy
	Drain  time.Duration
	Heal   time.Duration // node back to replicated volumes whole, and how long the node waits for that before it goes
}

// rarely is the factor for the poll interval while a watch is open: a silent watch is not
// necessarily lost.
const rarely = 10

// Await calls look until it is done, at the interval of t. It stops at once if our own credentials
// are wrong: waiting does not help.
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

// AwaitTasks waits until list finds no running task.
func AwaitTasks(ctx context.Context, w wait.For, list func(context.Context) ([]string, error)) error {
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		running, err := list(ctx)
		return len(running) == 0, "running: " + strings.Join(running, ", "), wait.Stop(err)
	})
}
