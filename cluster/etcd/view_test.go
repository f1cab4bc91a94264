package etcd

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

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
