package etcd

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
)

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
