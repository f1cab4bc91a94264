package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
)

type claiming struct {
	Project
	machines Machines
	o        RollOptions
	say      func(text string)

	held    *claim.Held // nil: not taken
	id      string      // of the run that holds it
	inLease *bool       // the claim is kept in Kubernetes; nil: not known yet
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

// judged returns err, or the claim's error if the claim was lost meanwhile.
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

// keptInLease says whether the claim is kept in Kubernetes, because the token may not create a VM for it.
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

// leaseServes refuses a plan that could be undone only with a claim in Proxmox, if the claim is a Lease.
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

// Claim reads the claim in Proxmox, with any VMID; found is false if there is none.
func (p Project) Claim(ctx context.Context, px cluster.VMReader) (c claim.State, found bool, err error) {
	vm, err := px.VMConfig(ctx, p.ClaimID())
	switch {
	case err == nil:
		return claim.Peek([]cluster.VM{vm}, p.Config.Cluster, p.ClaimID())
	case !errors.Is(err, cluster.ErrNotFound):
		return claim.State{}, false, err
	}
	vms, err := px.VMs(ctx)
	if _, away := errors.AsType[*cluster.HostsAway](err); err != nil && !away {
		return claim.State{}, false, err
	}
	return claim.Peek(vms, p.Config.Cluster, p.ClaimID())
}

// Listing is what Watched needs from Proxmox besides an Inventory.
type Listing interface {
	cluster.Inventory
	// Listed lists every VM with one request: without configurations, and about 10 s late.
	Listed(ctx context.Context) ([]cluster.VM, error)
}

// Watched is an Inventory for repeated reads by a live view: it reads again only VMs that are new or whose row in the
// list has changed, the claim, and both VMs of unfinished replacements. It counts its requests.
type Watched struct {
	Listing
	claim cluster.VMID

	rows     map[cluster.VMID]cluster.VM // from the last list
	known    map[cluster.VMID]cluster.VM // as last read
	requests int
}

func (p Project) Watched(px Listing) *Watched { return &Watched{Listing: px, claim: p.ClaimID()} }

// Requests is the approximate number of requests since the last call.
func (w *Watched) Requests() int {
	n := w.requests
	w.requests = 0
	return n
}

// VMs implements cluster.VMReader. If it would have to read many VMs, it reads all.
func (w *Watched) VMs(ctx context.Context) ([]cluster.VM, error) {
	listed, err := w.Listed(ctx)
	w.requests++
	if err != nil {
		return nil, err
	}
	rows := map[cluster.VMID]cluster.VM{}
	for _, row := range listed {
		rows[row.ID] = row
	}
	was, known := w.rows, w.known
	w.rows, w.known = rows, map[cluster.VMID]cluster.VM{}
	if known == nil {
		return w.all(ctx)
	}
	var vms []cluster.VM
	worked := w.workedOn(known)
	for _, row := range listed {
		vm, ok := known[row.ID]
		if old := was[row.ID]; !ok || worked[row.ID] || old.Name != row.Name || old.Host != row.Host || old.Running != row.Running {
			vm, err = w.Listing.VMConfig(ctx, row.ID)
			w.requests++
		}
		switch {
		case errors.Is(err, cluster.ErrNotFound):
			err = nil
			continue
		case err != nil:
			return w.all(ctx)
		}
		vm.Pool, vm.Running, vm.HA = row.Pool, row.Running, row.HA
		w.known[vm.ID] = vm
		vms = append(vms, vm)
	}
	slices.SortFunc(vms, func(a, b cluster.VM) int { return cmp.Compare(a.ID, b.ID) })
	return vms, nil
}

func (w *Watched) all(ctx context.Context) ([]cluster.VM, error) {
	vms, err := w.Listing.VMs(ctx)
	w.requests += 2 + len(vms)
	w.known = nil
	if err == nil {
		w.known = map[cluster.VMID]cluster.VM{}
		for _, vm := range vms {
			w.known[vm.ID] = vm
		}
	}
	return vms, err
}

// workedOn returns the claims, and the VMs and parking VMs of unfinished replacements.
func (w *Watched) workedOn(known map[cluster.VMID]cluster.VM) map[cluster.VMID]bool {
	worked := map[cluster.VMID]bool{w.claim: true}
	for _, vm := range known {
		if survey.IsClaim(vm) {
			worked[vm.ID] = true
		}
		if rec, ok, err := parking.ReadRecord(vm); ok && (err != nil || rec.Open) {
			worked[vm.ID], worked[rec.VMID] = true, true
		}
	}
	return worked
}

func (w *Watched) VM(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	w.requests += 2
	return w.Listing.VM(ctx, id)
}

func (w *Watched) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	w.requests++
	return w.Listing.VMConfig(ctx, id)
}

func (w *Watched) OwnedVolumes(ctx context.Context, host, storage string, owner cluster.VMID) ([]string, error) {
	w.requests++
	return w.Listing.OwnedVolumes(ctx, host, storage, owner)
}
