package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/internal/sim/etcd"
	"github.com/recast-sh/recast/internal/sim/must"
)

func realTime(d time.Duration) time.Duration { return d }

// ensemble is a cluster with all members running.
type ensemble struct {
	*etcd.Cluster
	t    *testing.T
	stop map[string]func(orderly bool)
}

func newEnsemble(t *testing.T, names ...string) *ensemble {
	var members []etcd.Member
	for _, n := range names {
		members = append(members, etcd.Member{Name: n, PeerURL: "https://" + n + ":2380"})
	}
	e := &ensemble{Cluster: etcd.New(realTime, members...), t: t, stop: map[string]func(bool){}}
	for _, n := range names {
		e.start(n)
	}
	time.Sleep(10 * time.Second)
	return e
}

func (e *ensemble) id(name string) uint64 {
	e.t.Helper()
	for _, m := range e.List() {
		if m.Name == name || m.PeerURL == "https://"+name+":2380" {
			return m.ID
		}
	}
	e.t.Fatalf("no member %s in %v", name, e.List())
	return 0
}

func (e *ensemble) start(name string) { e.stop[name] = e.Start(e.id(name), name, "") }

func (e *ensemble) names() string {
	var out []string
	for _, m := range e.List() {
		out = append(out, m.Name)
	}
	return strings.Join(out, " ")
}

func TestRemoveKeepsTheQuorum(t *testing.T) {
	t.Parallel()
	type row struct {
		members []string
		down    []string
		remove  string
		want    error
	}
	must.Bubbles(t, map[string]row{
		"one of three":                 {[]string{"a", "b", "c"}, nil, "a", nil},
		"one of two":                   {[]string{"a", "b"}, nil, "a", nil},
		"the only one":                 {[]string{"a"}, nil, "a", etcd.ErrNotEnoughStarted},
		"the one that is down":         {[]string{"a", "b", "c"}, []string{"c"}, "c", nil},
		"one more than may be missing": {[]string{"a", "b", "c"}, []string{"c"}, "a", etcd.ErrUnhealthy},
		"without quorum":               {[]string{"a", "b", "c"}, []string{"b", "c"}, "c", etcd.ErrTimeout},
		"two of five down":             {[]string{"a", "b", "c", "d", "e"}, []string{"d", "e"}, "a", etcd.ErrUnhealthy},
	}, func(t *testing.T, c row) {
		e := newEnsemble(t, c.members...)
		for _, n := range c.down {
			e.stop[n](false)
		}
		time.Sleep(10 * time.Second)
		began := time.Now()
		must.Equal(t, "err", c.want, e.Remove(t.Context(), e.id(c.remove)), cmpopts.EquateErrors())
		if errors.Is(c.want, etcd.ErrTimeout) {
			must.Take(t, began, 7*time.Second, 7*time.Second)
		}
	})
}

func TestAddWaitsForEveryVoter(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		e := newEnsemble(t, "a", "b", "c")
		ctx := t.Context()
		e.stop["c"](true)
		must.FailIs(t, must.Err(e.Add(ctx, "https://d:2380")), etcd.ErrUnhealthy)
		e.start("c")
		must.FailIs(t, must.Err(e.Add(ctx, "https://d:2380")), etcd.ErrUnhealthy)
		time.Sleep(5 * time.Second)
		must.FailIs(t, must.Err(e.Add(ctx, "https://a:2380")), etcd.ErrPeerURLExists)
		must.Get(e.Add(ctx, "https://d:2380"))(t)
		must.FailIs(t, must.Err(e.Add(ctx, "https://f:2380")), etcd.ErrTooManyLearners)
		e.start("d")
		must.Equal(t, "promote at once", etcd.ErrLearnerNotReady, e.Promote(ctx, e.id("d")), cmpopts.EquateErrors())
		time.Sleep(5 * time.Second)
		must.Do(t, e.Promote(ctx, e.id("d")))
		must.Equal(t, "promote again", etcd.ErrNotLearner, e.Promote(ctx, e.id("d")), cmpopts.EquateErrors())
		must.Equal(t, "violations", 0, len(e.Violations()))
	})
}

func TestLeadership(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		e := newEnsemble(t, "a", "b", "c")
		ctx := t.Context()
		leader := func() string {
			id := e.Status(e.id("a")).Leader
			m, _ := e.Lookup(id)
			return m.Name
		}
		first := leader()
		var other string
		for _, m := range e.List() {
			if m.Name != first {
				other = m.Name
			}
		}
		must.FailIs(t, e.MoveLeader(ctx, e.id(other), e.id(first)), etcd.ErrNotLeader)
		must.Equal(t, "moved", []any{nil, other}, []any{e.MoveLeader(ctx, e.id(first), e.id(other)), leader()})
		e.stop[other](false) // power loss: the election takes a second
		must.Equal(t, "leader right after the loss of the leader", "", leader())
		began := time.Now()
		must.Do(t, e.Linearizable(ctx))
		must.Take(t, began, time.Second, time.Second)
		now := leader()
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		must.FailIs(t, e.MoveLeader(short, e.id(now), e.id(other)), context.DeadlineExceeded)
		e.start(other)
		e.stop[now](true)
		must.Equal(t, "the same leader, or none, after an orderly stop", false, leader() == "" || leader() == now)
	})
}

func TestViolationsAreRecordedOncePerLoss(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		e := newEnsemble(t, "a", "b", "c")
		e.stop["a"](false)
		must.Equal(t, "violations", 0, len(e.Violations()))
		e.stop["b"](false)
		e.stop["c"](false)
		e.start("b")
		e.start("c")
		e.stop["b"](true)
		want := []string{
			"2000-01-01T00:00:10Z: etcd has lost its quorum: of the voting members [a b c] only [c] run",
			"2000-01-01T00:00:10Z: etcd has lost its quorum: of the voting members [a b c] only [c] run",
		}
		must.Equal(t, "violations", want, e.Violations())
	})
}

func TestNoViolationBeforeAllHaveRun(t *testing.T) {
	t.Parallel()
	c := etcd.New(realTime, etcd.Member{Name: "a"}, etcd.Member{Name: "b"}, etcd.Member{Name: "c"})
	stop := c.Start(c.List()[0].ID, "a", "")
	stop(true)
	must.Equal(t, "violations", 0, len(c.Violations()))
}

func TestARemovedMemberLearnsItFromAnother(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		e := newEnsemble(t, "a", "b")
		a := e.id("a")
		e.stop["a"](true)
		time.Sleep(time.Minute)
		e.start("a")
		time.Sleep(time.Minute)
		must.Do(t, e.Remove(t.Context(), a))
		time.Sleep(2 * time.Second)
		must.Equal(t, "it has not been told", false, !e.Removed(a))
		e.stop["b"](true)
		must.Equal(t, "it can't know that", []any{false, "b"}, []any{e.Removed(a), e.names()})
	})
}

func TestASnapshotIsReadBack(t *testing.T) {
	t.Parallel()
	c := etcd.New(realTime, etcd.Member{Name: "a", PeerURL: "https://a:2380"})
	data := []etcd.KeyValue{{Key: "/registry/a", Revision: 3, Value: []byte("one")}, {Key: "/registry/b", Revision: 900, Value: []byte{}}}
	b := must.Get(c.Snapshot(data))(t)
	must.Equal(t, "data", data, must.Get(etcd.ReadSnapshot(b, false))(t))
	type row struct {
		bytes []byte
		skip  bool
		err   string
	}
	must.Each(t, map[string]row{
		"one bit is wrong":       {append(bytes.Clone(b[:len(b)-1]), b[len(b)-1]^1), false, "expected sha256"},
		"a copy":                 {b[:len(b)-32], false, "snapshot missing hash"},
		"a copy, said to be one": {b[:len(b)-32], true, ""},
		"no database":            {make([]byte, 9000), true, "error verifying snapshot"},
	}, func(t *testing.T, c row) { must.Fail(t, must.Err(etcd.ReadSnapshot(c.bytes, c.skip)), c.err) })
}
