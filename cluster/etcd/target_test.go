package etcd

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
)

// found is the requested machine, whose etcd data directory is empty.
type found struct {
	cluster.Talos
	*clustertest.Calls
	machine cluster.Machine
	members []cluster.Member
}

func (f *found) Machine(context.Context, netip.Addr) (cluster.Machine, error) {
	return f.machine, f.Call("Machine")
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

// sums is a snapshot with that sum.
func sums(sum string, err error) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return sum, err }
}

// TestFindSource: etcd begins with nothing but the planned snapshot.
func TestFindSource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
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
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: err = %v, want %q", name, err, c.err)
		}
	}
}
