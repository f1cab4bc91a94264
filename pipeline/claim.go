package pipeline

import (
	"context"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/access"
)

// VMIDs is the range for recast's own VMs.
func (p Project) VMIDs() cluster.VMIDRange {
	r := p.Config.Proxmox.VMIDs
	return cluster.VMIDRange{First: cluster.VMID(r.First), Last: cluster.VMID(r.Last)}
}

// NodeVMs are the known VMIDs of the nodes, sorted: those in the configuration and those
// of a plan.
func (p Project) NodeVMs(plan cluster.Plan) []cluster.VMID {
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

// claim takes the claim at the first call; host is where to create its VM if there is
// none. Later calls add the VMs of the plan to it.
func (w *work) claim(ctx context.Context, host string) error {
	nodes := w.NodeVMs(w.rep.Plan)
	if w.held != nil {
		return w.held.Cover(ctx, nodes)
	}
	inLease, err := w.keptInLease(ctx)
	if err != nil {
		return err
	}
	if inLease { // otherwise Acquire needs to see every VM anyway
		if err := access.NeedsToSee().Check(ctx, w.machines.Proxmox); err != nil {
			return err
		}
	}
	id, err := w.o.newRunID()
	if err != nil {
		return err
	}
	c := &cluster.Claim{
		Proxmox: w.machines.Proxmox, Cluster: w.Config.Cluster, VMID: w.ClaimID(), VMIDs: w.VMIDs(), Nodes: nodes,
		Host: host, Holder: w.o.Holder, Run: id,
		Leases: w.machines.Leases, InLease: inLease, Dead: w.o.Dead, Say: func(text string) { w.run.Note("roll", text) },
	}
	w.id = id
	w.held, err = c.Acquire(ctx)
	return err
}

// judged is err, or the error of the claim if that was lost meanwhile.
func (w *work) judged(err error) error {
	if w.held == nil {
		return err
	}
	return w.held.Judge(err)
}

// whileHeld returns a context that ends when a claim that was taken is lost.
func (w *work) whileHeld(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.held == nil {
		return ctx, func() {}
	}
	return w.held.Within(ctx)
}
