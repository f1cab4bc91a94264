package gate

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/internal/fault"
)

// The Node in Kubernetes decides which machine has a name: every cluster has it, because a node is matched to its
// VM by it. Talos' discovery may be off, lists a machine for half an hour after it is gone, and shows only one of
// two members with the same name (controllers/cluster/member.go).

// RequireOneMachine refuses unless the machine of the node's VM is both the machine at the node's address and the
// one that has its name in Kubernetes. It accepts a machine that does not answer: other checks decide whether it
// must.
func (n Gate) RequireOneMachine(ctx context.Context) error {
	m, err := n.Talos.Identity(ctx, n.Plan.Addr)
	switch {
	case err != nil:
	case m.UUID != n.Plan.UUID:
		return fault.WithHint(fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not %s", n.Plan.Addr, m.UUID, n.Plan.UUID),
			"another machine has the address of %s: see who has that lease, or whether it is a virtual address", n.Plan.Node)
	case m.Nodename != "" && m.Nodename != n.Plan.Node:
		return fault.WithHint(fault.UUIDMismatch.Refusedf("the machine of %s is node %s now", n.Plan.Node, m.Nodename),
			"see who has changed its hostname, and change it back, or nodes[].name in recast.yaml")
	}
	return n.RequireOwnName(ctx)
}

// RequireOwnName refuses if Kubernetes has another machine under the node's name.
func (n Gate) RequireOwnName(ctx context.Context) error {
	k, err := n.KubeNode(ctx)
	if err != nil {
		return err
	}
	return n.requireOwn(ctx, k)
}

func (n Gate) requireOwn(ctx context.Context, k cluster.KubeNode) error {
	if k.UUID == n.Plan.UUID {
		return nil
	}
	return n.otherMachine(ctx, k.UUID, fault.UUIDMismatch.Refusedf("Kubernetes has UUID %s for node %s, whose VM %d has %s: two machines have its name", k.UUID, n.Plan.Node, n.Plan.VMID, n.Plan.UUID))
}

// otherMachine adds to err which VM's machine has that UUID and also uses the node's name.
func (n Gate) otherMachine(ctx context.Context, uuid string, err error) error {
	vms, errVMs := n.Proxmox.VMs(ctx)
	for _, vm := range vms {
		if errVMs == nil && vm.UUID() == uuid {
			err = fmt.Errorf("%w; it is the machine of %s", err, vm)
		}
	}
	return fault.WithHint(err, "give every machine a hostname of its own (is one a clone?): talosctl get affiliates shows who is who; "+
		"while node %s is out, its Node stays the other one's: once kubectl get nodes shows it as NotReady, kubectl delete node %s; then run the same command again", n.Plan.Node, n.Plan.Node)
}

// RequireNameFree refuses to bring a machine up under the node's name while another machine uses that name: the new
// machine would take over the other's Node and, when it joins etcd, Talos would remove the other's member
// (addMember in services/etcd.go). An API that does not answer is accepted: this may be the only control plane, and
// without etcd's quorum no member can join.
func (n Gate) RequireNameFree(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, exchange.LookAround)
	defer cancel()
	if k, err := n.KubeNode(asking); err == nil {
		if err := n.requireOwn(asking, k); err != nil {
			return err
		}
	}
	for _, e := range n.AskEtcd() {
		if n.Plan.Role != cluster.ControlPlane || e.Node == n.Plan.Node {
			continue
		}
		members, err := n.Talos.EtcdMembers(asking, e.Addr)
		if err != nil {
			continue
		}
		m, found, err := etcd.View{Members: members}.Member(n.Plan.Node)
		if err != nil || !found {
			return errors.Join(err, ctx.Err())
		}
		return n.requireOwnMember(asking, m)
	}
	return ctx.Err()
}

// requireOwnMember refuses if another machine runs the member with the node's name. A member whose
// peer address does not answer is an orphan, or the node's own.
func (n Gate) requireOwnMember(ctx context.Context, m cluster.EtcdMember) error {
	addr, err := m.Address(nil)
	if err != nil || addr == n.Plan.Addr {
		return nil //nolint:nilerr // added, but never started
	}
	other, err := n.Talos.Identity(ctx, addr)
	if err != nil || other.UUID == n.Plan.UUID {
		return nil //nolint:nilerr // see above
	}
	return n.otherMachine(ctx, other.UUID, fault.UUIDMismatch.Refusedf("etcd member %x is named %s, but runs on %s, which has UUID %s: another machine has its name", m.ID, n.Plan.Node, addr, other.UUID))
}
