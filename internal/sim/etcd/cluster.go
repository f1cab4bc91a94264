// Package etcd models an etcd [Cluster] as its clients and machines see it: who is a member, who runs, who leads, and
// what needs a quorum. The machine keeps what a member has on disk.
package etcd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"
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

// Members lists the members. It needs a quorum: clientv3 asks for a linearizable list.
func (c *Cluster) Members(ctx context.Context) (list []Member, err error) {
	err = c.propose(ctx, func() error {
		list = slices.Clone(c.members)
		return nil
	})
	return list, err
}

// Add adds a learner that has not started yet. Every voting member must have been
// connected for a while (mayAddMember with StrictReconfigCheck).
func (c *Cluster) Add(ctx context.Context, peerURL string) (m Member, err error) {
	err = c.propose(ctx, func() error {
		all, _ := c.voters()
		if c.connected() < len(all) {
			return ErrUnhealthy
		}
		for _, o := range c.members {
			if o.PeerURL == peerURL {
				return ErrPeerURLExists
			}
		}
		if slices.ContainsFunc(c.members, func(o Member) bool { return o.Learner }) {
			return ErrTooManyLearners
		}
		m = Member{ID: newID(), PeerURL: peerURL, Learner: true}
		c.members = append(c.members, m)
		c.sort()
		c.index++
		c.update()
		return nil
	})
	return m, err
}

// Remove removes a member unless that would cost the quorum (mayRemoveMember).
func (c *Cluster) Remove(ctx context.Context, id uint64) error {
	return c.propose(ctx, func() error {
		i := c.find(id)
		if i < 0 {
			return ErrMemberNotFound
		}
		if err := c.mayRemove(c.members[i]); err != nil {
			return err
		}
		c.members = slices.Delete(c.members, i, i+1)
		maps.DeleteFunc(c.alarms, func(a Alarm, _ bool) bool { return a.Member == id })
		c.index++
		if c.leader == id {
			c.leader = 0
		}
		c.update()
		return nil
	})
}

func (c *Cluster) mayRemove(m Member) error {
	if m.Learner {
		return nil
	}
	all, _ := c.voters()
	others, started := 0, 0
	for _, o := range all {
		if o.ID == m.ID {
			continue
		}
		others++
		if o.Name != "" {
			started++
		}
	}
	if started < others/2+1 {
		return ErrNotEnoughStarted
	}
	if _, running := c.running[m.ID]; !running {
		return nil // not part of the active quorum
	}
	if c.connected()-1 < 1+(len(all)-1)/2 {
		return ErrUnhealthy
	}
	return nil
}

// connected counts the voting members that the leader has been connected to for a while, itself included.
func (c *Cluster) connected() int {
	_, running := c.voters()
	long := time.Now().Add(-c.scale(healthInterval))
	n := 0
	for _, m := range running {
		if m.ID == c.leader || !c.running[m.ID].After(long) && !c.running[c.leader].After(long) {
			n++
		}
	}
	return n
}

// Promote makes a learner that has caught up a voter.
func (c *Cluster) Promote(ctx context.Context, id uint64) error {
	return c.propose(ctx, func() error {
		i := c.find(id)
		if i < 0 {
			return ErrMemberNotFound
		}
		if !c.members[i].Learner {
			return ErrNotLearner
		}
		since, running := c.running[id]
		if !running || time.Since(since) < c.scale(catchUpTime) {
			return ErrLearnerNotReady
		}
		c.members[i].Learner = false
		c.index++
		c.update()
		return nil
	})
}

// MoveLeader hands leadership from one member to another. If the target does not run, the call ends with ctx.
func (c *Cluster) MoveLeader(ctx context.Context, from, to uint64) error {
	for {
		var changed <-chan struct{}
		err := c.propose(ctx, func() error {
			if c.leader != from {
				return ErrNotLeader
			}
			i := c.find(to)
			if i < 0 || c.members[i].Learner {
				return ErrBadTransferee
			}
			if _, ok := c.running[to]; ok {
				c.lead(to)
				return nil
			}
			changed = c.changed
			return nil
		})
		if err != nil || changed == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// watch records a loss of quorum; c.mu must be held.
func (c *Cluster) watch() {
	all, running := c.voters()
	if len(all) > 0 && len(running) == len(all) {
		c.complete = true
	}
	below := c.complete && len(running) <= len(all)/2
	if below && !c.broken {
		c.violations = append(c.violations, fmt.Sprintf("%s: etcd has lost its quorum: of the voting members %s only %s run",
			time.Now().UTC().Format(time.RFC3339), names(all), names(running)))
	}
	c.broken = below
}

// Violations lists each loss of quorum after all voting members had run.
func (c *Cluster) Violations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.violations)
}

func names(members []Member) string {
	var out []string
	for _, m := range members {
		out = append(out, m.Name)
	}
	slices.Sort(out)
	return "[" + strings.Join(out, " ") + "]"
}

// KeyValue is the latest version of one key of a cluster's clients.
type KeyValue struct {
	Key      string
	Revision uint64 // of its last write
	Value    []byte
}

// Snapshot is what etcd's maintenance API streams: the database as a bbolt file with the
// clients' data, followed by its SHA-256.
func (c *Cluster) Snapshot(data []KeyValue) (_ []byte, err error) {
	dir, err := os.MkdirTemp("", "etcd-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := bbolt.Open(filepath.Join(dir, "db"), 0o600, &bbolt.Options{NoSync: true, NoGrowSync: true, PageSize: 4096})
	if err != nil {
		return nil, fmt.Errorf("make the database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.Update(func(tx *bbolt.Tx) error { return c.fill(tx, data) }); err != nil {
		return nil, fmt.Errorf("fill the database: %w", err)
	}
	var b bytes.Buffer
	if err := db.View(func(tx *bbolt.Tx) error { _, err := tx.WriteTo(&b); return err }); err != nil {
		return nil, fmt.Errorf("read the database: %w", err)
	}
	sum := sha256.Sum256(b.Bytes())
	return append(b.Bytes(), sum[:]...), nil
}

// fill writes the buckets of a new etcd 3.6 (server/storage/schema) and the clients' data.
func (c *Cluster) fill(tx *bbolt.Tx, data []KeyValue) error {
	index := c.Status(0).Index
	if len(data) > 0 {
		index += slices.MaxFunc(data, func(a, b KeyValue) int { return cmp.Compare(a.Revision, b.Revision) }).Revision
	}
	buckets := map[string]map[string][]byte{
		"key":     {},
		"meta":    {"consistent_index": binary.BigEndian.AppendUint64(nil, index), "storageVersion": []byte("3.6.0")},
		"members": {}, "cluster": {"clusterVersion": []byte("3.6.0")},
		"alarm": {}, "auth": {}, "authRoles": {}, "authUsers": {}, "lease": {}, "members_removed": {},
	}
	for _, kv := range data {
		buckets["key"][string(revision(kv.Revision))] = keyValue(kv.Key, kv.Revision, kv.Value)
	}
	for _, m := range c.List() {
		b, err := json.Marshal(map[string]any{
			"id": m.ID, "name": m.Name, "peerURLs": []string{m.PeerURL}, "clientURLs": []string{m.ClientURL}, "isLearner": m.Learner,
		})
		if err != nil {
			return err
		}
		buckets["members"][fmt.Sprintf("%x", m.ID)] = b
	}
	for name, entries := range buckets {
		bucket, err := tx.CreateBucket([]byte(name))
		if err != nil {
			return err
		}
		for k, v := range entries {
			if err := bucket.Put([]byte(k), v); err != nil {
				return err
			}
		}
	}
	return nil
}

// revision is a key of the bucket "key": main and sub revision.
func revision(main uint64) []byte {
	return binary.BigEndian.AppendUint64(append(binary.BigEndian.AppendUint64(nil, main), '_'), 0)
}

// keyValue is an mvccpb.KeyValue that was written once.
func keyValue(key string, rev uint64, value []byte) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), key)
	for field, v := range []uint64{rev, rev, 1} { // create_revision, mod_revision, version
		b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(field+2), protowire.VarintType), v)
	}
	return protowire.AppendBytes(protowire.AppendTag(b, 5, protowire.BytesType), value)
}

// ReadSnapshot is the clients' data in a snapshot that a member is to be restored from. It
// fails like etcdutl, in etcd's words (etcdutl/snapshot, Status and copyAndVerifyDB);
// skipHash accepts a copy of a database, which has no checksum.
func ReadSnapshot(b []byte, skipHash bool) (data []KeyValue, err error) {
	dir, err := os.MkdirTemp("", "etcd-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "db")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return nil, fmt.Errorf("write the snapshot: %w", err)
	}
	db, err := bbolt.Open(file, 0o400, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("error verifying snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		data, err = keysOf(tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("error verifying snapshot: %w", err)
	}
	if err := checkSum(b, skipHash); err != nil {
		return nil, fmt.Errorf("error recovering from the snapshot: %w", err)
	}
	return data, nil
}

func checkSum(b []byte, skip bool) error {
	hasHash := len(b)%512 == sha256.Size
	switch {
	case skip:
		return nil
	case !hasHash:
		return errors.New("snapshot missing hash but --skip-hash-check=false")
	}
	body, want := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], want) {
		return fmt.Errorf("expected sha256 %v, got %v", want, sum)
	}
	return nil
}

// keysOf checks the database and reads the latest revision of each key that was not deleted.
func keysOf(tx *bbolt.Tx) (data []KeyValue, err error) {
	var problems []string
	for err := range tx.Check() {
		problems = append(problems, err.Error())
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("snapshot file integrity check failed. %d errors found.\n%s", len(problems), strings.Join(problems, "\n"))
	}
	keys := tx.Bucket([]byte("key"))
	if keys == nil {
		return nil, errors.New(`nil bucket: "key"`)
	}
	err = keys.ForEach(func(rev, value []byte) error {
		kv := KeyValue{Revision: binary.BigEndian.Uint64(rev)}
		for len(value) > 0 {
			field, kind, n := protowire.ConsumeTag(value)
			if n < 0 {
				return fmt.Errorf("cannot unmarshal value, key: %q: %w", rev, protowire.ParseError(n))
			}
			whole := protowire.ConsumeFieldValue(field, kind, value[n:])
			if whole < 0 {
				return fmt.Errorf("cannot unmarshal value, key: %q: %w", rev, protowire.ParseError(whole))
			}
			if content, ok := protowire.ConsumeBytes(value[n:]); kind == protowire.BytesType && ok > 0 {
				switch field {
				case 1:
					kv.Key = string(content)
				case 5:
					kv.Value = bytes.Clone(content)
				}
			}
			value = value[n+whole:]
		}
		data = append(data, kv)
		return nil
	})
	return data, err
}
