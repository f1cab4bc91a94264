package sim

import (
	"context"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/internal/sim/etcd"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// objects are what the Kubernetes API keeps in etcd.
type objects struct{ lab *Lab }

var _ talosapi.Data = objects{}

func (o objects) Revision() uint64 { return o.lab.Kube.Revision() }

func (o objects) Dump(ctx context.Context) ([]etcd.KeyValue, error) {
	all, err := o.lab.Kube.Dump(ctx)
	var out []etcd.KeyValue
	for _, kv := range all {
		out = append(out, etcd.KeyValue(kv))
	}
	return out, err
}

func (o objects) Load(_ context.Context, data []etcd.KeyValue) error {
	var all []kubeapi.Stored
	for _, kv := range data {
		all = append(all, kubeapi.Stored(kv))
	}
	return o.lab.Kube.Load(all)
}

func (o objects) Renew(ctx context.Context, planted []map[string]any) error {
	return o.lab.Kube.Renew(ctx, planted)
}

// formEtcd creates the etcd cluster of the control planes as if bootstrapped long ago.
// It returns each member's data by node name.
func (l *Lab) formEtcd() map[string]talosapi.EtcdData {
	var peers []talosapi.EtcdPeer
	for _, n := range l.Nodes {
		if n.ControlPlane {
			peers = append(peers, talosapi.EtcdPeer{Name: n.Name, Addr: n.Addr})
		}
	}
	if len(peers) == 0 {
		return nil
	}
	out := map[string]talosapi.EtcdData{}
	for i, d := range l.machines.FormEtcd(l.Talos, peers...) {
		out[peers[i].Name] = d
	}
	return out
}

// EtcdMembers lists the members of etcd, by name.
func (l *Lab) EtcdMembers() []talosapi.EtcdMember { return l.machines.EtcdMembers() }

// EtcdViolations lists each loss of etcd's quorum after all members had run, and each second
// etcd that a bootstrap formed for one Talos cluster. Tests with several control planes expect
// none.
func (l *Lab) EtcdViolations() []string {
	return append(l.machines.EtcdViolations(), l.machines.BootstrapViolations()...)
}

// NodeIDsBegin has the IDs of machines that are installed from now on begin with a text: lists sort by it.
func (l *Lab) NodeIDsBegin(with string) { l.machines.NodeIDsBegin(with) }

// BreakEtcd sets the fault of a control plane's etcd; the zero fault clears it.
func (l *Lab) BreakEtcd(node string, f talosapi.EtcdFault) error {
	id, err := l.vmid(node)
	if err != nil {
		return fmt.Errorf("break etcd: %w", err)
	}
	if slices.ContainsFunc(l.Nodes, func(n Node) bool { return n.Name == node && !n.ControlPlane }) {
		return fmt.Errorf("break etcd: %s is a worker", node)
	}
	l.machines.BreakEtcd(id, f)
	return nil
}
