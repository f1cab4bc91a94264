package pve

import (
	"context"
	"sync"
)

// slotsPerHost bounds how many of our tasks change storages and configurations on
// one host at a time. They wait for each other's locks, and Proxmox gives up on a
// lock after 10 s (pve-cluster, Cluster.pm, cfs_lock): more tasks would fail, not be
// faster. Proxmox's own bulk actions use 4 (datacenter.cfg, max_workers).
const slotsPerHost = 4

// slots counts our tasks on each host. It is safe for concurrent use.
type slots struct{ hosts sync.Map }

// take waits for a free slot. The caller returns it with release.
func (s *slots) take(ctx context.Context, host string) (release func(), err error) {
	kept, _ := s.hosts.LoadOrStore(host, make(chan struct{}, slotsPerHost))
	slot := kept.(chan struct{})
	select {
	case slot <- struct{}{}:
		return func() { <-slot }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
