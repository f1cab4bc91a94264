package pipeline

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
)

// claiming takes the claim of a command, and keeps it until the end.
type claiming struct {
	Project
	machines Machines
	o        RollOptions
	say      func(text string)

	held    *claim.Held // nil: not taken
	id      string      // of the run that holds it
	inLease *bool       // it is kept in Kubernetes; nil: not known yet
}

// take takes the claim at the first call; host is where to create its VM if there is
// none. Later calls add the VMs of the plan to it.
func (c *claiming) take(ctx context.Context, host string, plan planning.Plan) error {
	nodes := c.NodeVMs(plan)
	if c.held != nil {
		return c.held.Cover(ctx, nodes)
	}
	inLease, err := c.keptInLease(ctx)
	if err != nil {
		return err
	}
	if inLease { // otherwise Acquire needs to see every VM anyway
		if err := survey.NeedsToSee().Check(ctx, c.machines.Proxmox); err != nil {
			return err
		}
	}
	id, err := c.o.newRunID()
	if err != nil {
		return err
	}
	wanted := &claim.Claim{
		Proxmox: c.machines.Proxmox, Cluster: c.Config.Cluster, VMID: c.ClaimID(), VMIDs: c.VMIDs(), Nodes: nodes,
		Host: host, Holder: c.o.Holder, Run: id,
		Leases: c.machines.Leases, InLease: inLease, Dead: c.o.Dead, Suspended: c.o.Suspended, Say: c.say,
	}
	c.id = id
	c.held, err = wanted.Acquire(ctx)
	return err
}

// judged is err, or the error of the claim if that was lost meanwhile.
func (c *claiming) judged(err error) error {
	if c.held == nil {
		return err
	}
	return c.held.Judge(err)
}

// whileHeld returns a context that ends when a claim that was taken is lost.
func (c *claiming) whileHeld(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.held == nil {
		return ctx, func() {}
	}
	return c.held.Within(ctx)
}

// store is the machines' Store, which stores files only while the claim is ours.
func (c *claiming) store() images.Store {
	s := c.machines.Store
	return claimedStore{Users: s, Reacher: s, Storages: s, Finder: s, store: s, write: c.held.Write}
}

// claimedStore embeds only interfaces that read: without a method for each change, it does not compile.
type claimedStore struct {
	images.Users
	images.Reacher
	images.Storages
	images.Finder
	store images.Store
	write images.Write
}

func (s claimedStore) Upload(ctx context.Context, u images.Upload) error {
	return s.send(ctx, func(ctx context.Context) error { return s.store.Upload(ctx, u) })
}

func (s claimedStore) Download(ctx context.Context, d images.Download) error {
	return s.send(ctx, func(ctx context.Context) error { return s.store.Download(ctx, d) })
}

func (s claimedStore) send(ctx context.Context, change func(context.Context) error) error {
	sent := false
	err := s.write(ctx, func(ctx context.Context) error { sent = true; return change(ctx) })
	if err != nil && !sent {
		return fmt.Errorf("%w: %w", images.ErrNotSent, err)
	}
	return err
}

// found returns the claim, held or left over, if there is one.
func (c *claiming) found(ctx context.Context, vms []cluster.VM) (claim.State, bool, error) {
	s, found, err := claim.Peek(vms, c.Config.Cluster, c.ClaimID())
	switch {
	case err != nil:
		return s, false, err
	case found:
		return s, true, cluster.RequireQuorum(ctx, c.machines.Proxmox) // needed to write it
	}
	s, found, err = claim.PeekLease(ctx, c.machines.Leases.Lease, c.Config.Cluster)
	if fault.KindOf(err) != fault.Refused {
		err = nil // the API may be down with its only control plane; taking the claim checks again
	}
	return s, found, err
}

// keptInLease says whether the claim is kept in Kubernetes, because the token may not
// create a VM for it.
func (c *claiming) keptInLease(ctx context.Context) (bool, error) {
	if c.inLease == nil {
		missing, err := survey.NeedsToClaim().Missing(ctx, c.machines.Proxmox)
		if err != nil {
			return false, err
		}
		c.inLease = new(len(missing.Lacks) > 0)
	}
	return *c.inLease, nil
}

// leaseServes refuses a plan whose way back needs a claim in Proxmox.
func (c *claiming) leaseServes(inLease bool, plan planning.Plan) error {
	const grant = "recast doctor says what the token lacks"
	switch {
	case !inLease:
		return nil
	case c.Config.Roll.BootFailure == string(cluster.ReimageOnBootFailure):
		return fault.WithHint(fault.PlanRefused.Refusedf("a node that does not come back could not be reimaged: the Proxmox token may not create VMs"),
			"roll.bootFailure: rollback does not need that; "+grant)
	case plan.TakesAPIAway():
		return fault.WithHint(fault.PlanRefused.Refusedf("the Proxmox token may not create VMs, so the claim would be a Lease, which is lost with the only control plane: if that does not come back, it could not be rolled back"),
			grant+"; with the privileges for a claim in Proxmox the node can be upgraded")
	}
	return nil
}
