package rolling

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// requireNew refuses to create a node if a part of it already exists, or if etcd is not healthy enough.
func (n *Node) requireNew(ctx context.Context) error {
	if n.Plan.Resume {
		return n.RequireNameFree(ctx)
	}
	problems := []error{n.requireBootable(ctx), n.requireRoom(ctx), n.requireNoVM(ctx), n.requireNoMachine(ctx)}
	if n.Plan.Bootstraps {
		return errors.Join(append(problems, n.requireNoCluster(ctx))...)
	}
	problems = append(problems, n.requireNoNode(ctx))
	if n.Plan.Role == cluster.ControlPlane {
		problems = append(problems, n.requireNoMember(ctx))
	}
	return errors.Join(problems...)
}

// requireNoCluster refuses to begin a cluster whose Kubernetes API answers.
func (n *Node) requireNoCluster(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, exchange.LookAround)
	defer cancel()
	switch _, err := n.Kube.Nodes(asking); {
	case cluster.IsUnanswered(err):
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("see that there is no cluster yet: %w", err)
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("the cluster's Kubernetes API answers: there is one already, and it was to begin with %s", n.Plan.Node), "run the same command again, which looks again")
}

// requireBroken refuses to take away a control plane if its cluster is not broken: the Kubernetes API answers, or the
// control plane's etcd has a leader.
func (n *Node) requireBroken(ctx context.Context) error {
	problems := []error{cluster.RequireQuorum(ctx, n.Proxmox), n.requireNoLeader(ctx)}
	if !n.Plan.Resume {
		problems = append(problems, n.requireNoCluster(ctx), n.requireStorages(ctx), n.RequireUnchanged(ctx))
	}
	return errors.Join(problems...)
}

// requireNoLeader refuses a control plane whose etcd has a leader, or whose VM runs while its etcd does not say
// whether there is a leader. It waits for a VM that is shutting down.
func (n *Node) requireNoLeader(ctx context.Context) error {
	const again = "run the same command again, which looks again"
	err := n.Wait(ctx, "gate", n.Plan.Node+" off, or without a leader", n.Timing.Stop, func(ctx context.Context) (bool, string, error) {
		asking, cancel := context.WithTimeout(ctx, exchange.LookAround)
		defer cancel()
		s, _ := n.Talos.EtcdStatus(asking, n.Plan.Addr) // the answer counts, even with an error
		switch {
		case s.Leader != 0:
			return false, "", wait.Stop(fault.WithHint(fault.PlanMoved.Refusedf("etcd on %s has a leader: the cluster is not broken", n.Plan.Node), again))
		case s.MemberID != 0:
			return true, "", nil
		}
		vm, err := n.Proxmox.VMState(ctx, n.Plan.VMID)
		if errors.Is(err, cluster.ErrNotFound) {
			return true, "", nil
		}
		return err == nil && !vm.Running, "it runs, and its etcd does not answer", err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fault.WithHint(fault.PlanMoved.Refusedf("VM %d of %s runs, and its etcd does not say whether it has a leader", n.Plan.VMID, n.Plan.Node), "see that it does not serve, switch it off, and %s", again)
	}
	return err
}

// requireNoVM refuses to make a VM whose name or number another VM has.
func (n *Node) requireNoVM(ctx context.Context) error {
	vms, err := n.Proxmox.VMs(ctx)
	if err != nil {
		return fmt.Errorf("look for VMs of %s: %w", n.Plan.Node, err)
	}
	for _, vm := range vms {
		if vm.ID == n.Plan.VMID || vm.Name == n.Plan.Node {
			return fault.WithHint(fault.PlanMoved.Refusedf("there is %s, and VM %d %q was to be made", vm, n.Plan.VMID, n.Plan.Node), "run recast plan and look again")
		}
	}
	return nil
}

// requireNoNode refuses to make a node that Kubernetes knows.
func (n *Node) requireNoNode(ctx context.Context) error {
	_, err := n.Kube.Node(ctx, n.Plan.Node)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("ask Kubernetes for node %s: %w", n.Plan.Node, err)
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("Kubernetes has a node %s already", n.Plan.Node), "run recast plan and look again")
}

// requireNoMachine refuses to make a node at whose address a Talos machine answers.
func (n *Node) requireNoMachine(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, exchange.LookAround)
	defer cancel()
	what := "a machine in maintenance mode"
	m, err := cluster.ReadIdentity(asking, n.Talos, n.Plan.Addr)
	if err == nil {
		what = fmt.Sprintf("machine %s (UUID %s)", m.Nodename, m.UUID)
	} else if _, err = n.Maintenance.MaintenanceMachine(asking, n.Plan.Addr); err != nil {
		return ctx.Err() // no machine has the address
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("%s answers at %s, which is to be the address of %s", what, n.Plan.Addr, n.Plan.Node), "give the node another address in recast.yaml")
}

// requireNoMember refuses to create a control plane whose name a member of etcd has, since Talos would remove that
// member when the new one joins. It also refuses if etcd is not healthy: one more member would have to agree. If
// another control plane is just joining, requireNoMember waits.
func (n *Node) requireNoMember(ctx context.Context) error {
	var unhealthy error
	err := n.Wait(ctx, "gate", "etcd healthy", n.Timing.Join, func(ctx context.Context) (bool, string, error) {
		v, err := etcd.Look(ctx, n.Talos, n.OtherControlPlanes())
		if err != nil {
			return false, "", wait.Stop(err)
		}
		m, found, err := v.Member(n.Plan.Node)
		if err != nil {
			return false, "", wait.Stop(err)
		}
		if found {
			return false, "", wait.Stop(fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd has a member named %s (%x)", n.Plan.Node, m.ID), "%s", v.Leftover(m)))
		}
		wrong := strings.Join(v.Unhealthy(""), "; ")
		unhealthy = fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd must be healthy for %s to join it: %s", n.Plan.Node, wrong), "bring its members back first")
		return wrong == "", wrong, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return unhealthy
	}
	return err
}
