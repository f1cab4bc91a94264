package pve

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
)

// seenFor is how long a VM is first looked for where it was seen, before the
// cluster's list is read. A host that still shows a VM that has moved is cut off
// from the cluster: it cannot change anything, and its report that a VM is off is
// not trusted (see isOn).
const seenFor = 15 * time.Second

// lastSeen records on which hosts VMs were recently seen.
type lastSeen struct {
	mu    sync.Mutex
	hosts map[cluster.VMID]sighting
}

type sighting struct {
	host string
	at   time.Time
}

// list records the cluster's list, requested at that time. If it has no state for a
// VM, the host may be unreachable.
func (l *lastSeen) list(rows []resource, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts = make(map[cluster.VMID]sighting, len(rows))
	for _, row := range rows {
		if row.Status != "unknown" {
			l.hosts[cluster.VMID(row.VMID)] = sighting{row.Node, at}
		}
	}
}

// add records that Proxmox put a VM on that host, or that it was read there after
// the list was requested at that time.
func (l *lastSeen) add(id cluster.VMID, host string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hosts == nil {
		l.hosts = map[cluster.VMID]sighting{}
	}
	l.hosts[id] = sighting{host, at}
}

func (l *lastSeen) of(id cluster.VMID) (host string, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, found := l.hosts[id]
	passed := max(time.Since(s.at), time.Now().Round(0).Sub(s.at.Round(0))) // the wall clock counts if this machine was suspended
	return s.host, found && passed < seenFor
}

func (l *lastSeen) forget(id cluster.VMID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, id)
}

// whereSeen reads a VM where it was last seen. found is false if it must be looked
// up: the host no longer shows it, or the token no longer may (rights from a pool
// end with the VM). If the host does not answer, the list decides whether the VM is
// still there; the host is not asked again.
func (c *vms) whereSeen(ctx context.Context, id cluster.VMID, read reading) (vm cluster.VM, found bool, err error) {
	host, known := c.seen.of(id)
	if !known {
		return vm, false, nil
	}
	vm = cluster.VM{ID: id, Host: host}
	err = read(ctx, &vm)
	_, answered := errors.AsType[*api.Error](err)
	switch {
	case err == nil:
		return vm, true, nil
	case api.IsUnanswered(err):
		defer c.seen.forget(id)
		rows, errList := c.resources(ctx)
		still := slices.ContainsFunc(rows, func(r resource) bool { return cluster.VMID(r.VMID) == id && r.Node == host })
		if errList != nil || still {
			return cluster.VM{}, true, errors.Join(c.hosts.unreachable(ctx, vm, err), errList)
		}
		return cluster.VM{}, false, nil
	}
	c.seen.forget(id)
	return cluster.VM{}, !answered, err
}
