package claim

import (
	"context"

	"github.com/recast-sh/recast/cluster"
)

// Write sends one change. Before that, it reads the claim afresh and requires that it is ours. While the change is
// sent, losing the claim ends ctx. Every guard of this package, the prunes and the uploads of a roll send what they
// change through Write.
func (h *Held) Write(ctx context.Context, send func(context.Context) error) error {
	if err := h.Check(ctx); err != nil {
		return err
	}
	ctx, end := h.Within(ctx)
	defer end()
	return send(ctx)
}

// hook sends one change of Proxmox, at the time and under the conditions that it decides. vm is the VM whose lock
// Proxmox respects for the change; the zero VM: none. send gets vm as last read. others are further VMs that the
// change involves.
type hook func(ctx context.Context, vm cluster.VM, send func(context.Context, cluster.VM) error, others ...cluster.VMID) error

func (h *Held) writeVM(ctx context.Context, vm cluster.VM, send func(context.Context, cluster.VM) error, _ ...cluster.VMID) error {
	return h.Write(ctx, func(ctx context.Context) error { return send(ctx, vm) })
}
