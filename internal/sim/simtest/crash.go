package simtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim/record"
)

// errKilled is the journal's error for a killed run.
var errKilled = errors.New("this run was killed")

// errNotReached says that a run ended before the point at which to kill it.
var errNotReached = errors.New("the roll ended before that point")

// killer counts the points at which a roll can die, and kills it at one of them: right
// after a server has acted on a changing request and before the answer is sent, or around
// a journal write.
type killer struct {
	client *Client
	cancel context.CancelFunc
	at     int    // kill at this point; 0: never
	after  string // or at the first one whose name contains this; "": never

	mu     sync.Mutex
	points []string
	dead   bool
	broken []string // promises found broken after some call
}

// watch makes every changing request and journal write of the client a point.
func (l *Lab) watch(c *Client, at int, cancel context.CancelFunc) *killer {
	k := &killer{client: c, at: at, cancel: cancel}
	l.Recorder.Hooks(nil, func(call record.Call) {
		if call.Mutation {
			_ = k.point(call.Proto + " " + call.Method + " " + call.Path) // the client is cut: there is no answer
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

// rollKilledAt kills a roll at a point; 0 lets it finish. It returns the points that were
// passed and the promises that were broken.
func (l *Lab) rollKilledAt(ctx context.Context, at int) (points, broken []string, err error) {
	return l.rollKilled(ctx, planning.Policy{}, at, "")
}

// rollKilled is rollKilledAt with a policy; it also kills after the first call whose name contains after.
func (l *Lab) rollKilled(ctx context.Context, policy planning.Policy, at int, after string) (points, broken []string, err error) {
	return l.killedAt(ctx, at, after, func(ctx context.Context, c *Client) error { return errOf(c.Roll(ctx, policy)) })
}

// killedAt is rollKilled of any command.
func (l *Lab) killedAt(ctx context.Context, at int, after string, do func(context.Context, *Client) error) (points, broken []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := l.Client()
	k := l.watch(c, at, cancel)
	k.after = after
	defer l.Recorder.Hooks(nil, nil)
	err = do(ctx, c)
	k.mu.Lock()
	defer k.mu.Unlock()
	if (at != 0 || after != "") && !k.dead {
		err = errors.Join(err, errNotReached)
	}
	return k.points, k.broken, err
}
