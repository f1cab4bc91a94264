package simtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/record"
)

// errKilled is what a killed run gets from its own journal.
var errKilled = errors.New("this run was killed")

// errNotReached says that a run ended before the point at which it was to die.
var errNotReached = errors.New("the roll ended before that point")

// killer counts the points at which a roll can die, and kills it at one of them:
// right after a server has acted on a changing request and before the answer
// leaves, or around a journal write.
type killer struct {
	client *Client
	cancel context.CancelFunc
	at     int    // kill at this point; 0: never
	after  string // or at the first one that has this in its name; "": never

	mu     sync.Mutex
	points []string
	dead   bool
	broken []string // promises found broken after some call
}

// watch makes every changing request and every journal write of the client a point.
func (l *Lab) watch(c *Client, at int, cancel context.CancelFunc) *killer {
	k := &killer{client: c, at: at, cancel: cancel}
	l.Recorder.Hooks(nil, func(call record.Call) {
		if call.Mutation {
			_ = k.point(call.Proto + " " + call.Method + " " + call.Path) // the client is cut: nobody gets an answer
		}
		if broken := l.World.Violations(); len(broken) > 0 {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.broken = append(k.broken, fmt.Sprintf("after %s %s: %s", call.Method, call.Path, strings.Join(broken, "; ")))
		}
	})
	c.JournalSync = func(point string) error { return k.point("journal " + point) }
	return k
}

func (k *killer) point(what string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return errKilled
	}
	k.points = append(k.points, what)
	if len(k.points) != k.at && (k.after == "" || !strings.Contains(what, k.after)) {
		return nil
	}
	k.dead = true
	k.client.Kill()
	k.cancel()
	return errKilled
}

// rollKilledAt rolls and is killed at a point; 0 lets it live. It returns the
// points that were passed and the promises that were broken on the way.
func (l *Lab) rollKilledAt(ctx context.Context, at int) (points, broken []string, err error) {
	return l.rollKilled(ctx, cluster.Policy{}, at, "")
}

// rollKilled is rollKilledAt with a policy, that is also killed after the first call with that in its name.
func (l *Lab) rollKilled(ctx context.Context, policy cluster.Policy, at int, after string) (points, broken []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := l.Client()
	k := l.watch(c, at, cancel)
	k.after = after
	defer l.Recorder.Hooks(nil, nil)
	_, err = c.Roll(ctx, policy)
	k.mu.Lock()
	defer k.mu.Unlock()
	if (at != 0 || after != "") && !k.dead {
		err = errors.Join(err, errNotReached)
	}
	return k.points, k.broken, err
}
