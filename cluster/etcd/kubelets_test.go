package etcd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
)

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
			if err := k.Step().Do(t.Context()); err != nil {
				t.Fatal(err)
			}
			if want := []string{"10.0.0.1", "10.0.0.3"}; !slices.Equal(s.restarted, want) {
				t.Errorf("restarted %q", s.restarted)
			}
			if diff := cmp.Diff([]string{"wk1", "wk2", "wk3", "not Ready: wk3"}, said); diff != "" {
				t.Errorf("said %s", diff)
			}
			if diff := cmp.Diff(want, left); diff != "" {
				t.Errorf("left %s", diff)
			}
		})
	}
}
