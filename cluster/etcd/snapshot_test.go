package etcd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/etcd"
	"github.com/recast-sh/recast/internal/sim/must"
)

// snapshotOf is a snapshot of an etcd with that many keys, as bbolt itself writes it.
func snapshotOf(t testing.TB, keys int) []byte {
	t.Helper()
	c := etcd.New(func(d time.Duration) time.Duration { return d }, etcd.Member{Name: "cp2", PeerURL: "https://b:2380"}, etcd.Member{Name: "cp1", PeerURL: "https://a:2380"})
	var data []etcd.KeyValue
	for i := range keys {
		data = append(data, etcd.KeyValue{Key: fmt.Sprint("/registry/configmaps/", i), Revision: uint64(i + 2), Value: bytes.Repeat([]byte("x"), 100)})
	}
	b := must.Get(c.Snapshot(data))(t)
	return b
}

func TestReadSnapshot(t *testing.T) {
	t.Parallel()
	members := []string{"cp1", "cp2"}
	large := snapshotOf(t, 3000) // its keys need a tree three pages high
	flipped := bytes.Clone(large)
	flipped[len(flipped)/2] ^= 1
	body := large[:len(large)-sha256.Size]
	overwritten := bytes.Clone(body)
	copy(overwritten[2*4096:], bytes.Repeat([]byte{0xff}, len(body)-2*4096)) // all but the two meta pages
	type row struct {
		bytes  []byte
		copied bool
		want   Snapshot
		err    string
	}
	cases := map[string]row{
		"many keys": {large, false, Snapshot{Revision: 3001, Members: members}, ""},
		"one key":   {snapshotOf(t, 1), false, Snapshot{Revision: 2, Members: members}, ""},
		"no key":    {snapshotOf(t, 0), false, Snapshot{Members: members}, ""},
		"a copy":    {body, true, Snapshot{Revision: 3001, Members: members}, ""},

		"a snapshot, said to be a copy":   {large, true, Snapshot{}, "it is no copy of a database of etcd"},
		"a copy, not said to be one":      {body, false, Snapshot{}, "it was cut off, or carries no checksum"},
		"empty":                           {nil, false, Snapshot{}, "snapshot has 0 bytes"},
		"an odd end":                      {large[:5000], false, Snapshot{}, "snapshot has 5000 bytes: it was cut off"},
		"one bit is wrong":                {flipped, false, Snapshot{}, "snapshot does not match its checksum"},
		"a copy, not described by itself": {make([]byte, 8192), true, Snapshot{}, "snapshot is not an etcd database, or a damaged one"},
		"a copy that lacks pages":         {body[:len(body)/2/4096*4096], true, Snapshot{}, "it was cut off: "},
		"a copy, its tree damaged":        {overwritten, true, Snapshot{}, "snapshot is not an etcd database, or a damaged one"},
		"no database":                     {make([]byte, 8192+32), false, Snapshot{}, "snapshot does not match its checksum"},
	}
	must.Each(t, cases, func(t *testing.T, c row) {
		file := filepath.Join(t.TempDir(), "etcd.db")
		must.Do(t, os.WriteFile(file, c.bytes, 0o600))
		got, err := ReadSnapshot(t.Context(), file, c.copied)
		if c.err != "" {
			must.Fail(t, err, c.err)
			return
		}
		c.want.SizeBytes = int64(len(c.bytes))
		c.want.Peers = map[string][]string{"cp1": {"https://a:2380"}, "cp2": {"https://b:2380"}}
		sum := sha256.Sum256(c.bytes[:len(c.bytes)/512*512])
		c.want.SHA256 = hex.EncodeToString(sum[:])
		must.Do(t, err)
		must.Equal(t, "got", c.want, got)
	})
}

func TestReadSnapshotOfADirectory(t *testing.T) {
	t.Parallel()
	must.Fail(t, must.Err(ReadSnapshot(t.Context(), t.TempDir(), false)), "is no file")
}

// TestSaveSnapshotClearsLeftovers: the next snapshot in a directory removes the part files of killed
// processes, which hold every secret.
func TestSaveSnapshotClearsLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := snapshotOf(t, 1)
	for name, age := range map[string]time.Duration{".etcd-1.part": 2 * time.Hour, ".etcd-2.part": 0, "etcd.db": 2 * time.Hour} {
		file, then := filepath.Join(dir, name), time.Now().Add(-age)
		must.Do(t, errors.Join(os.WriteFile(file, nil, 0o600), os.Chtimes(file, then, then)))
	}
	must.Get(SaveSnapshot(t.Context(), filepath.Join(dir, "new.db"), func(w io.Writer) error { _, err := w.Write(whole); return err }))(t)
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	must.Do(t, err)
	must.Equal(t, "left", []string{".etcd-2.part", "etcd.db", "new.db"}, left)
}

func TestSaveSnapshotIsAtomic(t *testing.T) {
	t.Parallel()
	whole := snapshotOf(t, 10)
	errLost := errors.New("connection lost")
	type row struct {
		stream func(io.Writer) error
		saved  bool
	}
	cases := map[string]row{
		"whole":    {func(w io.Writer) error { _, err := w.Write(whole); return err }, true},
		"cut off":  {func(w io.Writer) error { _, err := w.Write(whole[:len(whole)-1]); return err }, false},
		"an error": {func(w io.Writer) error { _, err := w.Write(whole); return errors.Join(err, errLost) }, false},
	}
	must.Each(t, cases, func(t *testing.T, c row) {
		dir := filepath.Join(t.TempDir(), "made", "here")
		_, err := SaveSnapshot(t.Context(), filepath.Join(dir, "etcd.db"), c.stream)
		entries, errDir := os.ReadDir(dir)
		if errDir != nil || (err == nil) != c.saved || (len(entries) == 1) != c.saved {
			t.Fatalf("err = %v, files %v, %v", err, entries, errDir)
		}
		for _, e := range entries {
			if info, err := e.Info(); err != nil || e.Name() != "etcd.db" || info.Mode().Perm() != 0o600 {
				t.Errorf("%s %v, %v", e.Name(), info.Mode(), err)
			}
		}
	})
}

// etcdOfThree is etcd as its members cp1, cp2 and cp3 (IDs 1 to 3) report it.
type etcdOfThree struct {
	status map[netip.Addr]cluster.EtcdStatus
	bad    map[netip.Addr]bool // their snapshots are cut off
	whole  []byte
	asked  []string // for a snapshot
}

var addrsOfThree = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")}

func (e *etcdOfThree) EtcdMembers(context.Context, netip.Addr) ([]cluster.EtcdMember, error) {
	peer := func(addr string) []string { return []string{"https://" + addr + ":2380"} }
	return []cluster.EtcdMember{{ID: 1, Name: "cp1", Peers: peer("127.0.0.1")}, {ID: 2, Name: "cp2", Peers: peer("127.0.0.2")}, {ID: 3, Name: "cp3", Peers: peer("127.0.0.3")}}, nil
}

func (e *etcdOfThree) EtcdStatus(_ context.Context, addr netip.Addr) (cluster.EtcdStatus, error) {
	s, ok := e.status[addr]
	if !ok {
		return s, errors.New(addr.String() + ": no answer")
	}
	return s, nil
}

func (e *etcdOfThree) EtcdSnapshot(_ context.Context, addr netip.Addr, _ uint64, w io.Writer) error {
	e.asked = append(e.asked, addr.String())
	b := e.whole
	if e.bad[addr] {
		b = b[:len(b)/2]
	}
	_, err := w.Write(b)
	return err
}

func TestBackUpEtcdWithoutRoom(t *testing.T) {
	t.Parallel()
	e := &etcdOfThree{whole: snapshotOf(t, 1), status: map[netip.Addr]cluster.EtcdStatus{}}
	for i, addr := range addrsOfThree {
		e.status[addr] = cluster.EtcdStatus{MemberID: uint64(i + 1), Leader: 1}
	}
	file := filepath.Join(t.TempDir(), "file")
	must.Get(SaveSnapshot(t.Context(), file, func(w io.Writer) error { _, err := w.Write(e.whole); return err }))(t)
	_, err := BackUp(t.Context(), e, addrsOfThree, filepath.Join(file, "etcd.db"), func(string) {})
	if err == nil || len(e.asked) > 0 || len(fault.Hints(err)) == 0 {
		t.Errorf("asked %q, %v", e.asked, err)
	}
}

func TestBackUpEtcd(t *testing.T) {
	t.Parallel()
	whole := snapshotOf(t, 5)
	member := func(id, leader uint64, errs ...string) cluster.EtcdStatus {
		return cluster.EtcdStatus{MemberID: id, Leader: leader, Version: "3.6.4", Errors: errs}
	}
	learner := member(3, 2)
	learner.Learner = true
	corrupt := member(1, 2, "alarm CORRUPT on member cp3")
	corrupt.Corrupt = true
	type row struct {
		status   []cluster.EtcdStatus // by address; zero: no answer
		bad      []int
		ends     int // how many of them the talosconfig names; 0: all
		asked    []string
		warnings []string // part of each
		kind     fault.Kind
		err      []string
	}
	cases := map[string]row{
		"the leader":                   {status: []cluster.EtcdStatus{member(1, 2), member(2, 2), member(3, 2)}, asked: []string{"127.0.0.2"}},
		"the leader is at no endpoint": {status: []cluster.EtcdStatus{member(1, 3), member(2, 3), member(3, 3)}, ends: 1, asked: []string{"127.0.0.3"}},
		"the leader does not answer": {
			status: []cluster.EtcdStatus{member(1, 2), {}, member(3, 2)}, asked: []string{"127.0.0.1"},
			warnings: []string{"cp2 does not answer: 127.0.0.2: no answer"},
		},
		"the leader's snapshot is cut off": {
			status: []cluster.EtcdStatus{member(1, 2), member(2, 2), member(3, 2)}, bad: []int{1}, asked: []string{"127.0.0.2", "127.0.0.1"},
			warnings: []string{"snapshot of etcd from cp2: snapshot has "},
		},
		"out of space": {
			status: []cluster.EtcdStatus{member(1, 1, "alarm NOSPACE on member cp1"), member(2, 1), member(3, 1)}, asked: []string{"127.0.0.1"},
			warnings: []string{"cp1: alarm NOSPACE on member cp1"},
		},
		"followers before a learner": {
			status: []cluster.EtcdStatus{{}, {}, learner}, kind: fault.Refused, err: []string{"no member of etcd that answers follows a leader"},
		},
		"corrupt":        {status: []cluster.EtcdStatus{corrupt, member(2, 2), member(3, 2)}, kind: fault.Refused, err: []string{"do not hold the same data", "CORRUPT on member cp3"}},
		"two etcds":      {status: []cluster.EtcdStatus{member(1, 1), member(9, 9), {}}, kind: fault.Refused, err: []string{"runs etcd member 9, which the others (cp1, cp2, cp3) do not know"}},
		"no leader":      {status: []cluster.EtcdStatus{member(1, 0), {}, {}}, kind: fault.Refused, err: []string{"follows a leader"}},
		"no answer":      {status: []cluster.EtcdStatus{{}, {}, {}}, kind: fault.Failed, err: []string{"127.0.0.3: no answer", "no endpoint of the talosconfig says how etcd is"}},
		"none is usable": {status: []cluster.EtcdStatus{member(1, 1), member(2, 1), member(3, 1)}, bad: []int{0, 1, 2}, asked: []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}, kind: fault.Failed, err: []string{"from cp3: snapshot has", "none was saved"}},
	}
	must.Each(t, cases, func(t *testing.T, c row) {
		e := &etcdOfThree{whole: whole, status: map[netip.Addr]cluster.EtcdStatus{}, bad: map[netip.Addr]bool{}}
		for i, s := range c.status {
			if s.MemberID != 0 {
				e.status[addrsOfThree[i]] = s
			}
			e.bad[addrsOfThree[i]] = slices.Contains(c.bad, i)
		}
		got, err := BackUp(t.Context(), e, addrsOfThree[:cmp.Or(c.ends, 3)], filepath.Join(t.TempDir(), "etcd.db"), func(string) {})
		must.Equal(t, "asked", c.asked, e.asked)
		if len(c.err) > 0 {
			must.FailAs(t, err, c.kind, c.err...)
			return
		}
		if err != nil || got.Revision != 6 || got.Address.String() != c.asked[len(c.asked)-1] {
			t.Errorf("%+v, %v", got, err)
		}
		match := len(got.Warnings) == len(c.warnings)
		for i := range min(len(got.Warnings), len(c.warnings)) {
			match = match && strings.Contains(got.Warnings[i], c.warnings[i])
		}
		if !match {
			t.Errorf("warnings %q, want %q", got.Warnings, c.warnings)
		}
	})
}
