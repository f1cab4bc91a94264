package gate

import (
	"context"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
)

// requireCeph checks again that no disk of the VM is on a Ceph that lets reads or writes wait: the VM would not
// start, or a new disk not be filled.
func requireCeph(ctx context.Context, px cluster.StorageReader, n planning.NodePlan) error {
	if len(n.OnCeph) == 0 {
		return nil
	}
	room := cluster.RoomOn(ctx, px, n.Host)
	if room.Err != nil {
		return fmt.Errorf("read the room on %s: %w", n.Host, room.Err)
	}
	for _, s := range room.Storages {
		if s.Blocked != "" && slices.Contains(n.OnCeph, s.Name) {
			return fault.WithHint(fault.GateClosed.Refusedf("%s has disks on storage %s: %s", n.Node, s.Name, s.Blocked), planning.CephRemedy, n.Host)
		}
	}
	return nil
}
