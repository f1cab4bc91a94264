package pipeline

import (
	"context"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
)

// Hypervisor is what doctor and init read from Proxmox.
type Hypervisor interface {
	cluster.Access
	cluster.Inventory
	// Hosts lists the nodes of the Proxmox cluster.
	Hosts(ctx context.Context) ([]cluster.Host, error)
	// Containers lists the containers of the Proxmox cluster, by VMID; VMs have other VMIDs.
	Containers(ctx context.Context) ([]cluster.Container, error)
	images.Reacher
	// Storage and ISO are those of images.Store.
	Storage(ctx context.Context, host, storage string) (images.StorageInfo, error)
	ISO(ctx context.Context, host, storage, name string) (sizeBytes int64, found bool, err error)
}
