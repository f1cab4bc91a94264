package pipeline

import (
	"context"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// vmids is the range that recast may use for VMs of its own.
func (p Project) vmids() cluster.VMIDRange {
	r := p.Config.Proxmox.VMIDs
	return cluster.VMIDRange{First: cluster.VMID(r.First), Last: cluster.VMID(r.Last)}
}

// nodeVMs are the VMs of the nodes, by number, as far as they are known: those that
// the configuration names, and those of a plan.
func (p Project) nodeVMs(plan cluster.Plan) []cluster.VMID {
	var ids []cluster.VMID
	for _, n := range p.Config.Nodes {
		ids = append(ids, cluster.VMID(n.VMID))
	}
	for _, n := range plan.Nodes {
		ids = append(ids, n.VMID)
	}
	slices.Sort(ids)
	return slices.DeleteFunc(slices.Compact(ids), func(id cluster.VMID) bool { return id == 0 })
}

// claim takes the claim once; host is where its VM is made if there is none. Later
// calls have it name the VMs of the plan too.
func (w *work) claim(ctx context.Context, host string) error {
	nodes := w.nodeVMs(w.rep.Plan)
	if w.held != nil {
		return w.held.Cover(ctx, nodes)
	}
	inLease, err := w.keptInLease(ctx)
	if err != nil {
		return err
	}
	if inLease { // else seeing every VM is a part of what it takes
		if err := cluster.NeedsToSee().Check(ctx, w.machines.Proxmox); err != nil {
			return err
		}
	}
	id, err := w.o.newRunID()
	if err != nil {
		return err
	}
	c := &cluster.Claim{
		Proxmox: w.machines.Proxmox, Cluster: w.Config.Cluster, VMID: w.claimID(), VMIDs: w.vmids(), Nodes: nodes,
		Host: host, Holder: w.o.Holder, Run: id,
		Leases: w.machines.Leases, InLease: inLease, Dead: w.o.Dead, Say: func(text string) { w.run.Note("roll", text) },
	}
	w.id = id
	w.held, err = c.Acquire(ctx)
	return err
}

// judged is how it ended, where the claim may have been lost meanwhile.
func (w *work) judged(err error) error {
	if w.held == nil {
		return err
	}
	return w.held.Judge(err)
}

// whileHeld is ctx for as long as the claim is ours, if it was taken.
func (w *work) whileHeld(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.held == nil {
		return ctx, func() {}
	}
	return w.held.Within(ctx)
}
