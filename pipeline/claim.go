package pipeline

import (
	"context"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/access"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
)

// claiming takes the claim of a command, and keeps it until the end.
type claiming struct {
	*work
	held    *claim.Held // nil: not taken
	id      string      // of the run that holds it
	inLease *bool       // it is kept in Kubernetes; nil: not known yet
}

// take takes the claim at the first call; host is where to create its VM if there is
// none. Later calls add the VMs of the plan to it.
func (w *claiming) take(ctx context.Context, host string) error {
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
	c := &claim.Claim{
		Proxmox: w.machines.Proxmox, Cluster: w.Config.Cluster, VMID: w.ClaimID(), VMIDs: w.VMIDs(), Nodes: nodes,
		Host: host, Holder: w.o.Holder, Run: id,
		Leases: w.machines.Leases, InLease: inLease, Dead: w.o.Dead, Suspended: w.o.Suspended, Say: func(text string) { w.run.Note("roll", text) },
	}
	w.id = id
	w.held, err = c.Acquire(ctx)
	return err
}

// judged is err, or the error of the claim if that was lost meanwhile.
func (w *claiming) judged(err error) error {
	if w.held == nil {
		return err
	}
	return w.held.Judge(err)
}

// whileHeld returns a context that ends when a claim that was taken is lost.
func (w *claiming) whileHeld(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.held == nil {
		return ctx, func() {}
	}
	return w.held.Within(ctx)
}

// found returns the claim, held or left over, if there is one.
func (w *claiming) found(ctx context.Context, vms []cluster.VM) (claim.State, bool, error) {
	s, found, err := claim.Peek(vms, w.Config.Cluster, w.ClaimID())
	switch {
	case err != nil:
		return s, false, err
	case found:
		return s, true, cluster.RequireQuorum(ctx, w.machines.Proxmox) // needed to write it
	}
	s, found, err = claim.PeekLease(ctx, w.machines.Leases.Lease, w.Config.Cluster)
	if fault.KindOf(err) != fault.Refused {
		err = nil // the API may be down with its only control plane; taking the claim checks again
	}
	return s, found, err
}

// keptInLease says whether the claim is kept in Kubernetes, because the token may not
// create a VM for it.
func (w *claiming) keptInLease(ctx context.Context) (bool, error) {
	if w.inLease == nil {
		missing, err := access.NeedsToClaim().Missing(ctx, w.machines.Proxmox)
		if err != nil {
			return false, err
		}
		w.inLease = new(len(missing.Lacks) > 0)
	}
	return *w.inLease, nil
}

// leaseServes refuses a plan whose way back needs a claim in Proxmox.
func (w *claiming) leaseServes(inLease bool, plan planning.Plan) error {
	const grant = "recast doctor says what the token lacks"
	switch {
	case !inLease:
		return nil
	case w.Config.Roll.BootFailure == string(cluster.ReimageOnBootFailure):
		return fault.WithHint(fault.PlanRefused.Refusedf("a node that does not come back could not be reimaged: the Proxmox token may not create VMs"),
			"roll.bootFailure: rollback does not need that; "+grant)
	case plan.TakesAPIAway():
		return fault.WithHint(fault.PlanRefused.Refusedf("the Proxmox token may not create VMs, so the claim would be a Lease, which is lost with the only control plane: if that does not come back, it could not be rolled back"),
			grant+"; with the privileges for a claim in Proxmox the node can be upgraded")
	}
	return nil
}
