package planning

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
)

// ForRemove plans to take one node away: its disks are parked, its VM and its Node are deleted. reach are the
// talosconfig's endpoints.
func ForRemove(clusterName string, wanted []cluster.Wanted, o observe.Observation, node string, reach []netip.Addr) (Plan, error) {
	plan := Plan{Cluster: clusterName, MaxUnavailable: 1, PerHost: 1, ControlPlanes: o.ControlPlanes(), Heed: Policy{}.Heed(wanted)}
	i := slices.IndexFunc(wanted, func(w cluster.Wanted) bool { return w.Name == node })
	if i < 0 {
		return Plan{}, fault.WithHint(fault.Configf("no node %q in the configuration", node), "leave it in recast.yaml until it is removed")
	}
	f := o.Found[i]
	n := NodePlan{Node: node, Role: cluster.Worker, Addr: f.Addr, Wanted: wanted[i], Found: f}
	if f.VM != nil {
		n.VMID, n.Host, n.UUID, n.Digest = f.VM.ID, f.VM.Host, f.VM.UUID(), f.VM.Digest
	}
	if f.Machine != nil && f.Machine.ControlPlane {
		n.Role = cluster.ControlPlane
	}
	switch {
	case f.Away:
		PlanAway(&n, o.Away)
	case f.Open() && f.Parking.Record.Strategy.VM() == cluster.VMGone:
		planResume(&n, o)
	case f.Open(), f.Unfinished():
		return Plan{}, fault.WithHint(fault.ParkedHalf.Refusedf("node %s: an earlier run is not finished", node), "recast roll finishes it; recast undo %s cancels a replacement", node)
	case f.Absent != nil && slices.ContainsFunc(o.Parking, func(p parking.Parking) bool {
		return p.Record.Node == node && slices.ContainsFunc(p.Record.Kept, func(k parking.KeptDisk) bool { return k.Removed })
	}):
		n.Why = "it is removed, and its disks are parked"
	case f.Absent != nil:
		return Plan{}, fault.WithHint(fault.NoWayBack.Refusedf("node %s is not there: there is nothing to remove", node), "take it out of recast.yaml; recast remove %s --free %s frees the disks of one that was removed", node, node)
	case f.Machine == nil || f.Node == nil:
		n.Refused = []string{"it could not be read: " + errors.Join(f.Errs...).Error() + ": bring it back first"}
	default:
		planRemove(&n, o, reach)
		n.AskLosses()
	}
	plan.Run, plan.Nodes = n.Run, []NodePlan{n}
	refuseControlled(&plan)
	heedOwnPod(&plan, o)
	plan.Order(Policy{})
	plan.Arrange()
	plan.AwaitOthers(o)
	heedStorage(&plan, o)
	return plan, nil
}

func planRemove(n *NodePlan, o observe.Observation, reach []netip.Addr) {
	n.Strategy, n.Why = cluster.Remove, "remove: its disks are parked and stay, its VM and its Node are deleted"
	n.Refused = append(n.Refused, strategy.AgainstInit(true, n.Found.Machine.TypeInit)...)
	if left := len(o.ControlPlanes()) - 1; n.Role == cluster.ControlPlane {
		n.Notes = append(n.Notes, "see that neither the kubeconfig nor cluster.controlPlane.endpoint is this node's address: what uses it would lose the cluster")
		switch {
		case left < 1:
			n.Refused = append(n.Refused, "it is the only control plane: without it there is no cluster")
		case left == 2:
			n.Notes = append(n.Notes, "two control planes are left: etcd survives the loss of neither; remove another one, or add one")
		}
	}
	if !slices.ContainsFunc(reach, func(addr netip.Addr) bool { return addr != n.Addr }) {
		n.Refused = append(n.Refused, "the talosconfig has no other endpoint: add one first (talosctl config endpoint)")
	}
	c := strategy.Candidate{Wanted: n.Wanted, VM: *n.Found.VM, Machine: *n.Found.Machine, Found: n.Found, Observation: o}
	n.Refused = append(n.Refused, c.AgainstRemove()...)
	n.Refused = append(n.Refused, o.Hidden(*n.Found.VM)...)
	for _, d := range n.Found.Local {
		if n.Wanted.Surge {
			break // a refusal, unless acceptLoss names it
		}
		n.Notes = append(n.Notes, fmt.Sprintf("%s is on this node only: it stays on its parked disks, and no pod can use it", d.What))
	}
	disks, err := n.Found.VM.Disks()
	if err != nil {
		return // already a refusal
	}
	for _, d := range disks {
		if !d.CDROM && !d.CSI() {
			n.Add(d, false)
		}
	}
	if n.Wanted.Surge {
		surgeNode{n}.remove(disks)
	}
	if n.Found.Ties.HA != nil {
		n.Notes = append(n.Notes, "it is taken out of Proxmox HA for good")
	}
}
