package planning

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
)

// bedside is a cluster whose pulse is taken; nil members: no control plane answers.
type bedside struct {
	cluster.Kube
	cluster.Talos
	nodes   []cluster.KubeNode
	members []cluster.EtcdMember
	status  map[netip.Addr]cluster.EtcdStatus
}

func (p bedside) Nodes(context.Context) ([]cluster.KubeNode, error) {
	if p.nodes == nil {
		return nil, errors.New("connection refused")
	}
	return p.nodes, nil
}

func (p bedside) EtcdMembers(context.Context, netip.Addr) ([]cluster.EtcdMember, error) {
	return p.members, nil
}

func (p bedside) EtcdStatus(_ context.Context, addr netip.Addr) (cluster.EtcdStatus, error) {
	if s, known := p.status[addr]; known {
		return s, nil
	}
	return cluster.EtcdStatus{}, errors.New("no route to host")
}

func TestTakePulse(t *testing.T) {
	t.Parallel()
	at := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }
	plan := Plan{ControlPlanes: []cluster.Endpoint{{Node: "cp1", Addr: at(1)}, {Node: "cp2", Addr: at(2)}, {Node: "cp3", Addr: at(3)}, {Node: "cp4", Addr: at(4)}}}
	members := []cluster.EtcdMember{{ID: 1, Name: "cp1"}, {ID: 2, Name: "cp2"}, {ID: 3, Name: "cp3"}, {ID: 4, Name: "cp4"}}
	cases := map[string]struct {
		of   bedside
		want Pulse
	}{
		"no answer": {bedside{}, Pulse{}},
		"all is well": {
			bedside{nodes: []cluster.KubeNode{{Name: "cp1", Ready: true}}, members: members[:1], status: map[netip.Addr]cluster.EtcdStatus{at(1): {MemberID: 1, Leader: 1}}},
			Pulse{Kubernetes: true, Nodes: 1, Etcd: true, Members: 1},
		},
		"a node and three members are not": {
			bedside{
				nodes:   []cluster.KubeNode{{Name: "wk2"}, {Name: "cp1", Ready: true}, {Name: "wk1"}},
				members: members,
				status:  map[netip.Addr]cluster.EtcdStatus{at(1): {MemberID: 1, Leader: 1}, at(2): {MemberID: 2, Leader: 1, Learner: true}, at(3): {MemberID: 3}},
			},
			Pulse{Kubernetes: true, Nodes: 3, NotReady: []string{"wk1", "wk2"}, Etcd: true, Members: 4, Unwell: []string{"cp2", "cp3", "cp4"}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := plan.TakePulse(t.Context(), c.of, c.of)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("pulse (-want +got):\n%s", diff)
			}
			if got.Ready()+len(got.NotReady) != got.Nodes || got.Well()+len(got.Unwell) != got.Members {
				t.Errorf("%d Ready, %d well", got.Ready(), got.Well())
			}
		})
	}
}
