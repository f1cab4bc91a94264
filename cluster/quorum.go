package cluster

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
)

// RequireQuorum is asked right before every call that can destroy: without
// quorum Proxmox deletes a VM's disks first and fails afterwards.
func RequireQuorum(ctx context.Context, px HostReader) error {
	quorate, err := px.Quorate(ctx)
	if err != nil {
		return fmt.Errorf("ask Proxmox for quorum: %w", err)
	}
	if !quorate {
		return fault.WithHint(fault.NoQuorum.Refusedf("the Proxmox cluster has no quorum"), "look at pvecm status on a Proxmox node, then run the same command again")
	}
	return nil
}
