package pipeline

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/journal"
)

// Running is a run that has begun and not ended, as its journal here tells it: it
// is in progress, or was killed.
type Running struct {
	ID      string
	Dir     string // of its journal, which its log is beside
	Started time.Time
	Plan    *cluster.Plan // nil: it has none yet
}

// RunningHere finds the newest run, if it was begun on this machine and has not ended.
func (p Project) RunningHere() (Running, bool, error) {
	runs, err := journal.Runs(p.runs())
	if len(runs) == 0 || !runs[0].Unfinished() {
		return Running{}, false, err
	}
	r := Running{ID: runs[0].ID, Dir: filepath.Join(p.runs(), runs[0].ID), Started: runs[0].Started}
	j, err := journal.Open(p.runs(), journal.Options{Run: r.ID, ReadOnly: true})
	if err != nil {
		return Running{}, false, err
	}
	defer j.Close()
	var plan cluster.Plan
	found, err := j.Get("plan", &plan)
	if found {
		r.Plan = &plan
	}
	return r, err == nil, err
}

// Ended says how a run ended that was begun here; "" while it goes on.
func (p Project) Ended(run string) (outcome string, err error) {
	runs, err := journal.Runs(p.runs())
	for _, r := range runs {
		if r.ID == run && !r.Unfinished() {
			return r.Outcome, nil
		}
	}
	return "", err
}

// Claim reads the claim in Proxmox; found is false where nobody holds it there.
func (p Project) Claim(ctx context.Context, px cluster.Inventory) (c cluster.ClaimState, found bool, err error) {
	vm, err := px.VMConfig(ctx, p.claimID())
	if errors.Is(err, cluster.ErrNotFound) {
		return cluster.ClaimState{}, false, nil
	}
	if err != nil {
		return cluster.ClaimState{}, false, err
	}
	return cluster.PeekClaim([]cluster.VM{vm}, p.Config.Cluster, p.claimID())
}

// Counted is an Inventory that counts what it costs: about as many requests.
type Counted struct {
	cluster.Inventory
	n atomic.Int64
}

// Requests is how many there were since it was asked last.
func (c *Counted) Requests() int { return int(c.n.Swap(0)) }

// VMs implements cluster.Inventory: two lists, and each VM's configuration.
func (c *Counted) VMs(ctx context.Context) ([]cluster.VM, error) {
	vms, err := c.Inventory.VMs(ctx)
	c.n.Add(int64(2 + len(vms)))
	return vms, err
}

// VM implements cluster.Inventory.
func (c *Counted) VM(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	c.n.Add(3)
	return c.Inventory.VM(ctx, id)
}

// VMConfig implements cluster.Inventory.
func (c *Counted) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	c.n.Add(2)
	return c.Inventory.VMConfig(ctx, id)
}

// VMState implements cluster.Inventory.
func (c *Counted) VMState(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	c.n.Add(2)
	return c.Inventory.VMState(ctx, id)
}

// OwnedVolumes implements cluster.Inventory.
func (c *Counted) OwnedVolumes(ctx context.Context, host, storage string, owner cluster.VMID) ([]string, error) {
	c.n.Add(1)
	return c.Inventory.OwnedVolumes(ctx, host, storage, owner)
}
