package simtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim/record"
)

// errKilled is the journal's error for a killed run.
var errKilled = errors.New("this run was killed")

// deed is what a client is told to do.
type deed = func(ctx context.Context, c *Client) error

// rolls is a roll with that policy.
func rolls(policy planning.Policy) deed {
	return func(ctx context.Context, c *Client) error { return errOf(c.Roll(ctx, policy)) }
}

// point is a changing request or a journal write at which a run can be killed: the nth of that name.
// Its number among all of a run depends on how often the run said that it still holds its claim.
type point struct {
	name string
	nth  int
	at   int // its number in an undisturbed run, from 1
}

func (p point) String() string { return fmt.Sprintf("point %d, %q", p.at, p.name) }

// beats is how many of a run's writes of its claim are points: how many there are is a matter of time. The
// names of these points begin with beat.
const (
	beats = 2
	beat  = "claim "
)

// around is how many points later a run is killed that has not come to its point: of two nodes that are made
// at the same time, now one gets the lower number, now the other.
const around = 5

// nameOf is the name of a call as a point.
func nameOf(c record.Call) string {
	name := c.Proto + " " + c.Method + " " + c.Path
	if c.Method == "PUT" && strings.Contains(c.Params["description"], "recast-claim: ") {
		return beat + name
	}
	return name
}

// pointsOf are the points of an undisturbed run.
func pointsOf(names []string) (points []point) {
	seen := map[string]int{}
	for _, name := range names {
		seen[name]++
		if seen[name] > beats && strings.HasPrefix(name, beat) {
			continue
		}
		points = append(points, point{name, seen[name], len(points) + 1})
	}
	return points
}

// namedPoint is the first point whose name contains a text.
func namedPoint(t testing.TB, points []point, text string) point {
	t.Helper()
	i := slices.IndexFunc(points, func(p point) bool { return strings.Contains(p.name, text) })
	if i < 0 {
		t.Fatalf("no point is named %q: %q", text, points)
	}
	return points[i]
}

// killer counts the points at which a run can die, and kills it at one of them: right
// after a server has acted on a changing request and before the answer is sent, or around
// a journal write.
type killer struct {
	client *Client
	cancel context.CancelFunc
	die    point // there; its zero value: never

	mu     sync.Mutex
	names  []string // of the points that were passed
	seen   map[string]int
	passed int // points, as pointsOf counts them
	dead   bool
	broken []string // promises found broken after some call
}

// watch makes every changing request and journal write of the client a point.
func (l *Lab) watch(c *Client, die point, cancel context.CancelFunc) *killer {
	k := &killer{client: c, die: die, cancel: cancel, seen: map[string]int{}}
	l.Recorder.Hooks(nil, func(call record.Call) {
		if call.Mutation {
			_ = k.pass(nameOf(call)) // the client is cut: there is no answer
		}
		if broken := l.World.Violations(); len(broken) > 0 {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.broken = append(k.broken, fmt.Sprintf("after %s %s: %s", call.Method, call.Path, strings.Join(broken, "; ")))
		}
	})
	c.JournalSync = func(at string) error { return k.pass("journal " + at) }
	return k
}

func (k *killer) pass(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return errKilled
	}
	k.names = append(k.names, name)
	k.seen[name]++
	if k.seen[name] <= beats || !strings.HasPrefix(name, beat) {
		k.passed++
	}
	there := name == k.die.name && k.seen[name] == k.die.nth
	if !there && (k.die == point{} || k.passed < k.die.at+around) {
		return nil
	}
	k.dead = true
	k.client.Kill()
	k.cancel()
	return errKilled
}

// carryOut has a client do something while it is watched.
func (l *Lab) carryOut(ctx context.Context, die point, do deed) (*killer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := l.Client()
	k := l.watch(c, die, cancel)
	err := do(ctx, c)
	l.Recorder.Hooks(nil, nil)
	k.mu.Lock()
	defer k.mu.Unlock()
	return k, err
}

// finish has a client do something undisturbed. It fails if that does, or if a promise was broken, and
// returns the points of it and the number of broken promises.
func (l *Lab) finish(t *testing.T, do deed) (points []point, broken int) {
	t.Helper()
	k, err := l.carryOut(t.Context(), point{}, do)
	if err != nil {
		t.Fatalf("%sthe command failed: %s", l.died, message(err))
	}
	return pointsOf(k.names), l.tellBroken(t, k)
}

// diesAt has a client do something, and kills it at a point. It fails if the client was not killed
// there, or if its end is not that of a killed one. It returns the number of broken promises.
func (l *Lab) diesAt(t *testing.T, at point, do deed) (broken int) {
	t.Helper()
	k, err := l.carryOut(t.Context(), at, do)
	if !k.dead {
		t.Logf("%q came %d times, not %d: %q", at.name, k.seen[at.name], at.nth, k.names)
	}
	requireKilled(t, k.dead, err, at.String())
	l.died = fmt.Sprintf("killed at %s: ", at)
	return l.tellBroken(t, k)
}

func (l *Lab) tellBroken(t *testing.T, k *killer) int {
	t.Helper()
	for _, b := range k.broken {
		t.Errorf("%spromise broken: %s", l.died, b)
	}
	return len(k.broken)
}
