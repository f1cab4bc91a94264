package pipeline

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/survey"
)

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

// Watched is an Inventory for repeated reads by a live view: it reads again only VMs that
// are new or whose row in the list has changed, the claim, and both VMs of unfinished
// replacements. It counts its requests.
type Watched struct {
	Listing
	claim cluster.VMID

	rows     map[cluster.VMID]cluster.VM // from the last list
	known    map[cluster.VMID]cluster.VM // as last read
	requests int
}

// Watched returns an Inventory for watching a run.
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

// VM implements cluster.VMReader.
func (w *Watched) VM(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	w.requests += 2
	return w.Listing.VM(ctx, id)
}

// VMConfig implements cluster.VMReader.
func (w *Watched) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	w.requests++
	return w.Listing.VMConfig(ctx, id)
}

// OwnedVolumes implements cluster.StorageReader.
func (w *Watched) OwnedVolumes(ctx context.Context, host, storage string, owner cluster.VMID) ([]string, error) {
	w.requests++
	return w.Listing.OwnedVolumes(ctx, host, storage, owner)
}
