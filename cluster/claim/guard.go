package claim

import (
	"context"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// Guard returns a Proxmox that checks before every change that the claim is still ours.
func (h *Held) Guard(px cluster.Proxmox) cluster.Proxmox {
	return guarded{Access: px, Inventory: px, Tasks: px, px: px, held: h}
}

// guarded embeds only interfaces that read: without a method here for each change, it does not
// compile.
type guarded struct {
	cluster.Access
	cluster.Inventory
	cluster.Tasks
	px   cluster.Proxmox
	held *Held
}

var _ cluster.Proxmox = guarded{}

func (g guarded) CreateVM(ctx context.Context, host string, id cluster.VMID, config map[string]string) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.CreateVM(ctx, host, id, config)
}

func (g guarded) SetConfig(ctx context.Context, vm cluster.VM, set map[string]string, del []string) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.SetConfig(ctx, vm, set, del)
}

func (g guarded) FreeDisk(ctx context.Context, vm cluster.VM, key string) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.FreeDisk(ctx, vm, key)
}

func (g guarded) DeleteVM(ctx context.Context, vm cluster.VM) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.DeleteVM(ctx, vm)
}

func (g guarded) MoveDisk(ctx context.Context, vm cluster.VM, key string, to cluster.VMID, toKey string) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.MoveDisk(ctx, vm, key, to, toKey)
}

func (g guarded) SetFirewall(ctx context.Context, vm cluster.VM, want cluster.FirewallConfig) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.SetFirewall(ctx, vm, want)
}

func (g guarded) GrowDisk(ctx context.Context, vm cluster.VM, key, size string) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.GrowDisk(ctx, vm, key, size)
}

func (g guarded) Migrate(ctx context.Context, vm cluster.VM, to string) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.Migrate(ctx, vm, to)
}

func (g guarded) SetPool(ctx context.Context, id cluster.VMID, pool string) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.SetPool(ctx, id, pool)
}

func (g guarded) RemoveHA(ctx context.Context, id cluster.VMID) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.RemoveHA(ctx, id)
}

func (g guarded) AddHA(ctx context.Context, r cluster.HAResource) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.AddHA(ctx, r)
}

func (g guarded) SetHA(ctx context.Context, r cluster.HAResource) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.SetHA(ctx, r)
}

func (g guarded) Start(ctx context.Context, vm cluster.VM) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.Start(ctx, vm)
}

func (g guarded) Shutdown(ctx context.Context, vm cluster.VM, grace time.Duration) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.Shutdown(ctx, vm, grace)
}

func (g guarded) Stop(ctx context.Context, vm cluster.VM) error {
	if err := g.held.Check(ctx); err != nil {
		return err
	}
	return g.px.Stop(ctx, vm)
}
