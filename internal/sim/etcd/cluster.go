// Package etcd models an etcd [Cluster] as its clients and machines see it: who is a member, who runs, who leads, and
// what needs a quorum. The machine keeps what a member has on disk.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Durations at speed 1.
const (
	requestTime    = 7 * time.Second // etcd's timeout for a proposal: 5 s and two elections (etcdserver.ServerConfig.ReqTimeout)
	electionTime   = time.Second
	healthInterval = 5 * time.Second // how long a member must have been connected to count (etcdserver.HealthInterval)
	catchUpTime    = 4 * time.Second // until a learner has the leader's data
)

// etcd's errors, word for word (api/v3/v3rpc/rpctypes/error.go).
var (
	ErrTimeout          = errors.New("etcdserver: request timed out")
	ErrUnhealthy        = errors.New("etcdserver: unhealthy cluster")
	ErrMemberNotFound   = errors.New("etcdserver: member not found")
	ErrNotEnoughStarted = errors.New("etcdserver: re-configuration failed due to not enough started members")
	ErrPeerURLExists    = errors.New("etcdserver: Peer URLs already exists")
	ErrTooManyLearners  = errors.New("etcdserver: too many learner members in cluster")
	ErrLearnerNotReady  = errors.New("etcdserver: can only promote a learner member which is in sync with leader")
	ErrNotLearner       = errors.New("etcdserver: can only promote a learner member")
	ErrNotForLearner    = errors.New("etcdserver: rpc not supported for learner")
	ErrNotLeader        = errors.New("etcdserver: not leader")
	ErrBadTransferee    = errors.New("etcdserver: bad leader transferee")
)

// Member is a member as the cluster lists it.
type Member struct {
	ID        uint64
	Name      string // "" until it has been started once
	PeerURL   string
	ClientURL string
	Learner   bool
}

// Cluster is one etcd cluster.
type Cluster struct {
	id    uint64
	scale func(time.Duration) time.Duration

	mu         sync.Mutex
	members    []Member             // by ID
	running    map[uint64]time.Time // since when, by member ID
	alarms     map[Alarm]bool
	leader     uint64    // 0: none
	electing   time.Time // since when a majority runs without a leader; zero: not electing
	term       uint64
	index      uint64
	complete   bool // all voting members have run at the same time
	broken     bool // fewer than a majority run now
	violations []string
	changed    chan struct{} // closed at the next change
}

// New makes a cluster whose members are all voters that have been started before.
// The IDs are random. scale turns a simulated duration into a real one.
func New(scale func(time.Duration) time.Duration, members ...Member) *Cluster {
	c := &Cluster{
		id: newID(), scale: scale, running: map[uint64]time.Time{}, alarms: map[Alarm]bool{},
		term: 1, index: 1, changed: make(chan struct{}),
	}
	for _, m := range members {
		m.ID, m.Learner = newID(), false
		c.members = append(c.members, m)
	}
	c.sort()
	return c
}

func newID() uint64 { return rand.Uint64() | 1 } // 0 means none

// ID is the cluster's own.
func (c *Cluster) ID() uint64 { return c.id }

// List is the members without asking for a quorum.
func (c *Cluster) List() []Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.members)
}

// Lookup finds a member.
func (c *Cluster) Lookup(id uint64) (Member, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.find(id)
	if i < 0 {
		return Member{}, false
	}
	return c.members[i], true
}

// Changed is closed at the next change of membership, leadership or of who runs.
func (c *Cluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Runs says whether any member runs.
func (c *Cluster) Runs() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.running) > 0
}

// Answers says whether a member's server runs.
func (c *Cluster) Answers(id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.running[id]
	return ok
}

// Start starts a member's server under that name. stop ends it: orderly, with leadership
// handed over first, or by loss of power.
func (c *Cluster) Start(id uint64, name, clientURL string) (stop func(orderly bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[id] = time.Now()
	if i := c.find(id); i >= 0 {
		c.members[i].Name, c.members[i].ClientURL = name, clientURL
	}
	c.update()
	return func(orderly bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.running, id)
		if c.leader == id {
			c.leader = 0
			if orderly {
				c.elect(id)
			}
		}
		c.update()
	}
}

// Removed says whether a running member knows that it was removed. It learns that from another member.
func (c *Cluster) Removed(id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	return c.find(id) < 0 && c.leader != 0
}

// Status is what a member's server reports about itself.
type Status struct {
	Leader, Term uint64
	Index        uint64 // without the writes of the cluster's clients
	Learner      bool
	Alarms       []Alarm // of all members
}

// Alarm is an alarm that a member has raised for the whole cluster.
type Alarm struct {
	Member uint64
	Kind   AlarmKind
}

// AlarmKind is a number of etcd's API (etcdserverpb.AlarmType).
type AlarmKind int

// The kinds.
const (
	NoSpace AlarmKind = 1
	Corrupt AlarmKind = 2
)

func (k AlarmKind) String() string {
	return map[AlarmKind]string{NoSpace: "NOSPACE", Corrupt: "CORRUPT"}[k]
}

// Status answers for member id.
func (c *Cluster) Status(id uint64) Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	s := Status{Leader: c.leader, Term: c.term, Index: c.index}
	if i := c.find(id); i >= 0 {
		s.Learner = c.members[i].Learner
	} else {
		s.Leader = 0
	}
	for _, m := range c.members {
		for _, kind := range []AlarmKind{NoSpace, Corrupt} {
			if a := (Alarm{m.ID, kind}); c.alarms[a] {
				s.Alarms = append(s.Alarms, a)
			}
		}
	}
	return s
}

// Alarm raises an alarm, or disarms it.
func (c *Cluster) Alarm(a Alarm, raised bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alarms[a] = raised
	c.update()
}

// find is the index of a member, -1 if there is none; c.mu must be held.
func (c *Cluster) find(id uint64) int {
	return slices.IndexFunc(c.members, func(m Member) bool { return m.ID == id })
}

func (c *Cluster) sort() {
	slices.SortFunc(c.members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
}

// voters needs c.mu held.
func (c *Cluster) voters() (all, running []Member) {
	for _, m := range c.members {
		if m.Learner {
			continue
		}
		all = append(all, m)
		if _, ok := c.running[m.ID]; ok {
			running = append(running, m)
		}
	}
	return all, running
}

// advance elects a leader if the election is over; c.mu must be held.
func (c *Cluster) advance() {
	all, running := c.voters()
	if len(running) <= len(all)/2 {
		c.leader, c.electing = 0, time.Time{} // a leader without quorum steps down
		return
	}
	if slices.ContainsFunc(running, func(m Member) bool { return m.ID == c.leader }) {
		return
	}
	c.leader = 0
	if c.electing.IsZero() {
		c.electing = time.Now()
	}
	if time.Since(c.electing) >= c.scale(electionTime) {
		c.elect(0)
	}
}

// elect makes the running voter with the lowest ID the leader, except one; c.mu must be held.
func (c *Cluster) elect(except uint64) {
	all, running := c.voters()
	i := slices.IndexFunc(running, func(m Member) bool { return m.ID != except })
	if i < 0 || len(running) <= len(all)/2 {
		return
	}
	c.lead(running[i].ID)
}

func (c *Cluster) lead(id uint64) {
	c.leader, c.electing = id, time.Time{}
	c.term++
	c.index++
	c.notify()
}

// update is called after each change; c.mu must be held.
func (c *Cluster) update() {
	c.advance()
	c.watch()
	c.notify()
}

func (c *Cluster) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Linearizable waits until a read of the cluster's data can be answered.
func (c *Cluster) Linearizable(ctx context.Context) error {
	return c.propose(ctx, func() error { return nil })
}

// propose runs f under the cluster's lock as soon as there is a leader.
func (c *Cluster) propose(ctx context.Context, f func() error) error {
	timeout := time.NewTimer(c.scale(requestTime))
	defer timeout.Stop()
	for {
		c.mu.Lock()
		c.advance()
		if c.leader != 0 {
			err := f()
			c.mu.Unlock()
			return err
		}
		changed := c.changed
		var due <-chan time.Time
		if !c.electing.IsZero() {
			due = time.After(time.Until(c.electing.Add(c.scale(electionTime))))
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return ErrTimeout
		case <-changed:
		case <-due:
		}
	}
}
