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
	"github.com/recast-sh/recast/internal/words"
)

// ForRemove plans to take one node away: its disks are parked, its VM and its Node are deleted. reach are the
// talosconfig's endpoints.
func ForRemove(clusterName string, wanted []cluster.Wanted, o observe.Observation, node string, reach []netip.Addr) (Plan, error) {
	plan := Plan{Cluster: clusterName, MaxUnavailable: 1, PerHost: 1, ControlPlanes: o.ControlPlanes(), Heed: Policy{}.Heed(wanted)}
	i := slices.IndexFunc(wanted, func(w cluster.Wanted) bool { return w.Name == node })
	if i < 0 {
		return Plan{}, fault.WithHint(fault.Configf("no node %q in the configuration", node), "leave it in recast.yaml until it is removed")
	}
	f, n := o.Found[i], planOf(wanted[i], o.Found[i])
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

// takesAway says whether the node's VM is taken away because its cluster is broken.
func takesAway(n NodePlan) bool { return n.Strategy.VM() == cluster.VMGone && n.Rebuild != "" }

// TakesAway says whether the plan takes away what is left of control planes of a broken cluster.
func TakesAway(p Plan) bool { return slices.ContainsFunc(p.Nodes, takesAway) }

// planLost plans a control plane of a broken cluster: first what is left of it is taken away, then it is made again.
func planLost(n *NodePlan, o observe.Observation) {
	planCreate(n, o)
	if n.Rebuild = o.Rebuild; n.Bootstraps {
		n.Why = "rebuild: etcd begins with it, from the snapshot"
	}
	if o.Away != nil {
		n.Refused = append(n.Refused, fmt.Sprintf("%s: a control plane on them could come back, and there would be two etcds: bring them back; one that is gone for good has to leave the Proxmox cluster", o.Away.Error()))
	}
	for _, p := range o.Parking {
		if p.Record.Node == n.Node && len(p.Record.Kept) > 0 {
			n.Notes = append(n.Notes, fmt.Sprintf("%s has %d disks of what it was: they stay there", p.VM, len(p.Record.Kept)))
		}
	}
	lost := n.Found.Absent.Lost
	if lost == nil {
		return
	}
	// Both are checked again once the VM is away, and its memory is free.
	against := n.Found.Absent.Against
	n.Refused = slices.DeleteFunc(n.Refused, func(why string) bool { return slices.Contains(against, why) })
	n.Space, n.Bootstraps, n.Notes = nil, false, nil

	n.Strategy, n.Role, n.EtcdKept = cluster.Remove, cluster.ControlPlane, true
	n.Why = "remove: the cluster is broken, so its VM goes; all its disks are parked and stay; then it is made again"
	n.Drift.Reasons = nil // the node exists, and can't be compared
	n.VMID, n.Host, n.UUID, n.Digest = lost.VM.ID, lost.VM.Host, lost.VM.UUID(), lost.VM.Digest
	n.Found.VM, n.Found.Ties, n.Found.Absent = &lost.VM, lost.Ties, nil
	n.Found.Parking, n.Found.Elsewhere = observe.TakeParking(n.Found.Parkings(), func(p parking.Parking) bool { return p.VM.Host == lost.VM.Host })
	if lost.VM.Host != n.Wanted.Shape.Host {
		n.Refused = append(n.Refused, fmt.Sprintf("its VM is on %s, and nodes[].host is %s: it is made again where it was, so that its disks need not move: set nodes[].host to %s", lost.VM.Host, n.Wanted.Shape.Host, lost.VM.Host))
	}
	if lost.Silent {
		n.Refused = append(n.Refused, fmt.Sprintf("its VM runs, and its etcd does not say whether it has a leader. See that it does not serve (talosctl -n %s etcd status), and switch it off: qm stop %d on %s", n.Addr, lost.VM.ID, lost.VM.Host))
	}
	c := strategy.Candidate{Wanted: n.Wanted, VM: lost.VM, Found: n.Found, Observation: o}
	n.Refused = append(n.Refused, c.AgainstRemove()...)
	disks, err := lost.VM.Disks()
	if err != nil {
		return // already a refusal
	}
	for _, d := range disks {
		if !d.CDROM {
			n.Add(d, false)
		}
	}
}

// againstRebuild refuses to rebuild a cluster that exists, unless an unfinished rebuild has begun it with the same
// snapshot.
func (p Policy) againstRebuild(o observe.Observation) error {
	for _, f := range o.Found { // also those that the plan leaves out
		if f.Absent != nil && f.Absent.Lost != nil && f.Absent.Lost.Leader {
			return fault.PlanRefused.Refusedf("etcd on %s has a leader, so the cluster is not broken: recast remove takes out one control plane, and recast roll makes one that is missing", f.Name)
		}
	}
	if o.Rebuild == "" || o.First != "" || o.Rebuilt(p.Bootstrap) {
		return nil
	}
	return fault.WithHint(fault.PlanRefused.Refusedf("the cluster's Kubernetes API answers: it is not broken"),
		"recast roll makes a node that is missing (if its Node is still there and NotReady: kubectl delete node), and recast remove takes one away; recast undo NODE puts back what an interrupted rebuild was taking away; recast restore gives a single control plane its etcd back")
}

// onlyTaking reduces the plan to what is taken away, as long as there is anything: the rest is planned again
// afterwards.
func onlyTaking(p *Plan) {
	if !TakesAway(*p) {
		return
	}
	p.Bootstrap = "" // one after the other
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy.From() == cluster.Nowhere {
			against := n.Found.Absent.Against // checked again when it is made: memory gets free
			n.Strategy, n.Why, n.Space = "", "it is made again once what is left of the others is taken away", nil
			n.Refused = slices.DeleteFunc(n.Refused, func(why string) bool { return slices.Contains(against, why) })
		}
	}
}

// refuseOthersRebuild refuses to finish what a rebuild began with another command, or another snapshot.
func refuseOthersRebuild(n *NodePlan, o observe.Observation) {
	rec := n.Found.Parking.Record
	switch {
	case rec.Rebuild == o.Rebuild, rec.Rebuild != "" && o.Rebuild != "" && n.Strategy.VM() == cluster.VMGone: // nothing has begun yet
	case rec.Rebuild == "":
		n.Refused = append(n.Refused, fmt.Sprintf("run %s began to %s, which is not finished and no part of a rebuild: recast status shows what finishes or cancels it", rec.Run, n.Strategy.Words().OnIt))
	case o.Rebuild == "":
		n.Refused = append(n.Refused, "recast rebuild began it, and nothing else may finish it: "+observe.RebuildGoesOn)
	default:
		n.Refused = append(n.Refused, fmt.Sprintf("run %s began with another snapshot, SHA-256 %s, not %s: run recast rebuild with that one", rec.Run, words.Short(rec.Rebuild), words.Short(o.Rebuild)))
	}
}
