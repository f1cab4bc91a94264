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
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/etcd"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
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

		"a snapshot, said to be a copy":   {large, true, Snapshot{}, "it is not an etcd database"},
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
		must.Be(t, errDir == nil && (err == nil) == c.saved && (len(entries) == 1) == c.saved,
			"err = %v, files %v, %v", err, entries, errDir)
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
	must.Hold(t, err != nil && len(e.asked) == 0 && len(fault.Hints(err)) != 0, "asked %q, %v", e.asked, err)
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
		"no answer":      {status: []cluster.EtcdStatus{{}, {}, {}}, kind: fault.Failed, err: []string{"127.0.0.3: no answer", "no endpoint of the talosconfig reports the state of etcd"}},
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
		must.Hold(t, err == nil && got.Revision == 6 && got.Address.String() == c.asked[len(c.asked)-1], "%+v, %v", got, err)
		match := len(got.Warnings) == len(c.warnings)
		for i := range min(len(got.Warnings), len(c.warnings)) {
			match = match && strings.Contains(got.Warnings[i], c.warnings[i])
		}
		must.Hold(t, match, "warnings %q, want %q", got.Warnings, c.warnings)
	})
}

// lone is a single control plane that never gets an etcd.
type lone struct {
	cluster.Talos
	early     int // number of calls that come too early
	bootstrap error
	state     string

	did []string
}

func (l *lone) EtcdStatus(context.Context, netip.Addr) (cluster.EtcdStatus, error) {
	return cluster.EtcdStatus{}, errors.New("no answer")
}

func (l *lone) EtcdService(context.Context, netip.Addr) (state, last string, err error) {
	return l.state, "what it told", nil
}

func (l *lone) EtcdRecover(_ context.Context, _ netip.Addr, _ string, snapshot io.Reader) error {
	b, err := io.ReadAll(snapshot)
	return errors.Join(err, l.note("recover "+string(b)))
}

func (l *lone) EtcdBootstrap(context.Context, netip.Addr, string, cluster.EtcdContent) error {
	return errors.Join(l.note("bootstrap"), l.bootstrap)
}

func (l *lone) note(what string) error {
	if l.early > 0 {
		l.early--
		return cluster.ErrNotYet
	}
	l.did = append(l.did, what)
	return nil
}

func TestRestoreFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "etcd.db")
	must.Do(t, os.WriteFile(file, []byte("db"), 0o600))
	type row struct {
		talos lone
		data  bool
		did   []string
		kind  fault.Kind
		err   string
	}
	cases := map[string]row{
		"it fails":              {lone{state: "Failed"}, false, []string{"recover db", "bootstrap"}, fault.Failed, "etcd.db: what it told"},
		"it is too early twice": {lone{state: "Failed", early: 2}, false, []string{"recover db", "bootstrap"}, fault.Failed, "what it told"},
		"the answer is lost":    {lone{state: "Preparing", bootstrap: cluster.ErrLostAnswer}, false, []string{"recover db", "bootstrap"}, fault.Failed, "gave up after 1m0s; last seen: Preparing: what it told"},
		"etcd has data already": {lone{bootstrap: fault.Refusedf("etcd data directory is not empty")}, false, []string{"recover db", "bootstrap"}, fault.Refused, "not empty"},
		"bootstrapped before":   {lone{state: "Preparing"}, true, nil, fault.Failed, "gave up"},
	}
	must.Bubbles(t, cases, func(t *testing.T, c row) {
		r := &Restore{Begin: Begin{
			Bootstraps: func() error { return nil },
			Talos:      &c.talos, Target: Target{Node: "cp1", Data: c.data}, File: file,
			Timing: cluster.Timing{Poll: time.Second, Join: time.Minute}, Say: func(string, string) {},
		}}
		err := new(step.Runner).Run(t.Context(), r.Steps())
		if err == nil || !strings.Contains(err.Error(), c.err) || fault.KindOf(err) != c.kind || c.kind == fault.Failed && len(fault.Hints(err)) == 0 {
			t.Errorf("err = %v, hints %q, want %q", err, fault.Hints(err), c.err)
		}
		must.Equal(t, "did", c.did, c.talos.did)
	})
}

// found is the requested machine, whose etcd data directory is empty.
type found struct {
	cluster.Talos
	*clustertest.Calls
	machine cluster.Machine
	members []cluster.Member
}

func (f *found) ReadParts(_ context.Context, _ netip.Addr, parts cluster.MachineParts) (cluster.Machine, error) {
	return clustertest.Parts(f.machine, parts), f.Call("Machine")
}

func (f *found) Members(context.Context) ([]cluster.Member, error) {
	return f.members, f.Call("Members")
}

func (f *found) Files(context.Context, netip.Addr, string, func(context.Context, cluster.MachineFiles) error) error {
	return f.Call("Files")
}

func TestFindTarget(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*found)
		err    string
	}{
		"the only control plane":    {func(*found) {}, ""},
		"a worker":                  {func(f *found) { f.machine.ControlPlane = false }, "is a worker"},
		"it begins alone":           {func(f *found) { f.machine.TypeInit = true }, "is of machine.type init: it takes no snapshot"},
		"another worker":            {func(f *found) { f.machine.Nodename, f.machine.ControlPlane = "wk1", false }, "10.0.0.11 is wk1"},
		"another control plane":     {func(f *found) { f.machine.Nodename = "cp2" }, "is not the only control plane: Talos knows cp2"},
		"a second known one":        {func(f *found) { f.members = append(f.members, cluster.Member{Nodename: "cp2", ControlPlane: true}) }, "is not the only control plane: Talos knows cp2"},
		"an unknown node":           {func(f *found) { f.members = f.members[:1] }, "does not know wk1"},
		"the machine is unreadable": {func(f *found) { f.FailAt = 1 }, "answers at none"},
		"members are unreadable":    {func(f *found) { f.FailAt = 2 }, "can't be determined"},
		"the data are unreadable":   {func(f *found) { f.FailAt = 3 }, "look for data of etcd"},
	} {
		f := &found{
			Calls: &clustertest.Calls{}, machine: cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "u"}, Nodename: "cp1", ControlPlane: true},
			members: []cluster.Member{{Nodename: "cp1", ControlPlane: true}, {Nodename: "wk1"}},
		}
		c.change(f)
		target, err := FindTarget(t.Context(), f, f, []netip.Addr{netip.MustParseAddr("10.0.0.11")}, "cp1", []string{"cp1", "wk1"})
		switch {
		case c.err == "" && (err != nil || target.UUID != "u" || target.Data):
			t.Errorf("%s: %+v, %v", name, target, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v, want %q", name, err, c.err)
		case f.FailAt > 0 && !errors.Is(err, clustertest.ErrBroken):
			t.Errorf("%s: %v does not say why", name, err)
		}
	}
}

func sums(sum string, err error) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return sum, err }
}

// TestFindSource: etcd begins with nothing but the planned snapshot.
func TestFindSource(t *testing.T) {
	t.Parallel()
	for _, c := range map[string]struct {
		source Source
		sum    string
		err    string
	}{
		"an empty etcd":   {},
		"none is given":   {Source{}, "sum", "run the same recast rebuild again"},
		"it is not there": {Source{File: "/nowhere", Sum: sums("", errors.New("not there"))}, "sum", "read /nowhere again: not there"},
		"another one":     {Source{File: "a.db", Sum: sums("other", nil)}, "sum", "read a.db again: its SHA-256 is other now, not sum"},
		"that one":        {Source{File: "a.db", Sum: sums("sum", nil)}, "sum", ""},
	} {
		err := c.source.Require(t.Context(), c.sum)
		must.Fail(t, err, c.err)
	}
}

func TestUnhealthyEtcd(t *testing.T) {
	t.Parallel()
	st := func(id, leader uint64, version string, errs ...string) cluster.EtcdStatus {
		return cluster.EtcdStatus{MemberID: id, Leader: leader, Version: version, Errors: errs}
	}
	cases := map[string]struct {
		a, b, c cluster.EtcdStatus // of cp1, cp2, cp3; zero: no answer
		except  string
		want    []string
	}{
		"healthy":                    {st(1, 1, "3.6.4"), st(2, 1, "3.6.4"), st(3, 1, "3.5.21"), "", nil},
		"no leader":                  {st(1, 0, ""), st(2, 0, ""), st(3, 0, ""), "cp1", []string{"cp2 knows no leader", "cp3 knows no leader"}},
		"two leaders":                {st(1, 1, ""), st(2, 1, ""), st(3, 3, ""), "", []string{"its members do not agree who leads: cp1 and cp2 say 1, cp3 say 3"}},
		"a silent member":            {st(1, 1, ""), cluster.EtcdStatus{}, st(3, 1, ""), "", []string{"cp2 does not answer"}},
		"the silent one is excepted": {st(1, 1, ""), cluster.EtcdStatus{}, st(3, 1, ""), "cp2", nil},
		"an alarm, reported by all":  {st(1, 1, "", "alarm NOSPACE on member cp3"), st(2, 1, "", "alarm NOSPACE on member cp3"), st(3, 1, ""), "", []string{"cp1: alarm NOSPACE on member cp3"}},
		"two minor versions":         {st(1, 1, "3.7.1"), st(2, 1, "3.6.4"), st(3, 1, "3.5.21"), "", []string{"its members are more than one minor version apart: cp3 runs 3.5.21, cp1 runs 3.7.1"}},
		"two majors":                 {st(1, 1, "3.7.1"), st(2, 1, "4.0.0"), st(3, 1, "3.7.1"), "", []string{"its members are more than one minor version apart: cp1 runs 3.7.1, cp2 runs 4.0.0"}},
		"the old one is excepted":    {st(1, 1, "3.7.1"), st(2, 1, "3.6.4"), st(3, 1, "3.5.21"), "cp3", nil},
		"an unknown version":         {st(1, 1, "3.7.1"), st(2, 1, ""), st(3, 1, "3.7.1"), "", nil},
	}
	for name, c := range cases {
		v := View{Members: []cluster.EtcdMember{{ID: 1, Name: "cp1"}, {ID: 2, Name: "cp2"}, {ID: 3, Name: "cp3"}}, Statuses: map[uint64]cluster.EtcdStatus{}, Errs: map[uint64]error{}}
		for i, s := range []cluster.EtcdStatus{c.a, c.b, c.c} {
			if id := uint64(i + 1); s.MemberID != 0 {
				v.Statuses[id] = s
			} else {
				v.Errs[id] = errors.New("does not answer")
			}
		}
		must.Equal(t, name, strings.Join(c.want, "; "), strings.Join(v.Unhealthy(c.except), "; "))
	}
}

// TestEmptyData: a command that wipes is given only for the volume that has etcd's data, and after a look at what else
// that volume has.
func TestEmptyData(t *testing.T) {
	t.Parallel()
	const wipes = "talosctl reset -n 10.0.0.1 --graceful=false --reboot --system-labels-to-wipe "
	for name, c := range map[string]struct {
		machine *cluster.Machine
		want    string
	}{
		"a partition of its own":   {&cluster.Machine{VolumeStatuses: []cluster.VolumeStatus{{ID: "ETCD", Type: cluster.PartitionVolume}}}, wipes + "ETCD, which"},
		"on EPHEMERAL":             {&cluster.Machine{}, "recast plan --explain cp1 lists what else only EPHEMERAL has; where that may go, too: " + wipes + "EPHEMERAL, which"},
		"of type init":             {&cluster.Machine{TypeInit: true}, "as a machine of type init it would begin a new, empty etcd then"},
		"a machine that is silent": {nil, "talosctl -n 10.0.0.1 get volumestatus ETCD shows"},
	} {
		got := EmptyData("cp1", netip.MustParseAddr("10.0.0.1"), c.machine)
		if !strings.HasPrefix(got, c.want) || (c.machine == nil || c.machine.TypeInit) && strings.Contains(got, "reset") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestLeftover: a member that answers is not to be removed.
func TestLeftover(t *testing.T) {
	t.Parallel()
	m := cluster.EtcdMember{ID: 0xc1, Name: "cp1", Peers: []string{"https://10.0.0.1:2380"}}
	silent, answers := View{}.Leftover(m), View{Statuses: map[uint64]cluster.EtcdStatus{0xc1: {}}}.Leftover(m)
	if !strings.Contains(silent, "remove-member c1") || strings.Contains(answers, "remove-member") || !strings.Contains(answers, "https://10.0.0.1:2380") {
		t.Errorf("silent: %s\nanswers: %s", silent, answers)
	}
}

type kubeletScene struct {
	cluster.Talos
	cluster.NodeReader
	restarted []string
	looks     int // at the Nodes
	readyAt   int // after so many, wk3 is Ready
}

func at(last byte) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, last})} }

func (s *kubeletScene) Members(context.Context) ([]cluster.Member, error) {
	return []cluster.Member{{Nodename: "wk2", Addresses: at(2)}, {Nodename: "cp1", Addresses: at(9), ControlPlane: true}, {Nodename: "wk1", Addresses: at(1)}, {Nodename: "wk4"}}, nil
}

func (s *kubeletScene) Nodes(context.Context) ([]cluster.KubeNode, error) {
	s.looks++
	return []cluster.KubeNode{{Name: "wk1", Addresses: at(1), Ready: true}, {Name: "wk3", Addresses: at(3), Ready: s.looks > s.readyAt}}, nil
}

func (s *kubeletScene) ReadParts(_ context.Context, addr netip.Addr, _ cluster.MachineParts) (cluster.Machine, error) {
	if addr == at(2)[0] {
		return cluster.Machine{}, errors.New("no answer")
	}
	return cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "uuid of " + addr.String()}}, nil
}

func (s *kubeletScene) RestartKubelet(_ context.Context, addr netip.Addr, uuid string) error {
	s.restarted = append(s.restarted, addr.String())
	if uuid != "uuid of "+addr.String() {
		return errors.New("another machine")
	}
	return nil
}

// TestKubelets restarts those that discovery or Kubernetes knows, but not of new machines, waits until their Nodes are
// Ready, and names what is left: one that is silent, and one that does not become Ready.
func TestKubelets(t *testing.T) {
	t.Parallel()
	const silent = "talosctl -n 10.0.0.2 service kubelet restart: wk2 did not do it (no answer)"
	for readyAt, want := range map[int][]string{3: {silent}, 1000: {silent, "see why nodes are not Ready (kubectl get nodes): the nodes whose kubelets were restarted to be Ready: gave up after 1m0s; last seen: not Ready: wk3: context deadline exceeded"}} {
		synctest.Test(t, func(t *testing.T) {
			s := &kubeletScene{readyAt: readyAt}
			var said, left []string
			k := Kubelets{
				Talos: s, Kube: s, Fresh: []string{"cp1"},
				Say: func(text string) { said = append(said, text) }, Left: func(text string) { left = append(left, text) },
			}
			must.Do(t, k.Step().Do(t.Context()))
			must.Equal(t, "restarted", []string{"10.0.0.1", "10.0.0.3"}, s.restarted)
			must.Equal(t, "said", []string{"wk1", "wk2", "wk3", "not Ready: wk3"}, said)
			must.Equal(t, "left", want, left)
		})
	}
}

// TestTwoMembersOfOneName: Talos would remove the wrong one when the machine joins again.
func TestTwoMembersOfOneName(t *testing.T) {
	t.Parallel()
	v := View{Members: []cluster.EtcdMember{{ID: 1, Name: "cp1"}, {ID: 2, Name: "cp2"}, {ID: 3, Name: "cp2"}}}
	cp1, has1, err1 := v.Member("cp1")
	_, has2, err2 := v.Member("cp2")
	_, has3, err3 := v.Member("cp3")
	must.Pass(t, errors.Join(err1, err3))
	must.Fail(t, err2, "etcd has two members named cp2: 2 and 3")
	must.Equal(t, "members, ID of cp1", []any{true, true, false, uint64(1)}, []any{has1, has2, has3, cp1.ID})
	must.Equal(t, "has", []bool{true, false}, []bool{v.Has(cluster.Endpoint{Node: "cp1"}), v.Has(cluster.Endpoint{Node: "cp3"})})
}
