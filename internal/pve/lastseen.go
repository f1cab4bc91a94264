package pve

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// seenFor is how long a VM is looked for where it was seen, before the cluster's
// list is asked where it is. A host that still shows a VM which is elsewhere by
// now is cut off from the cluster; it can change nothing, and that a VM is off is
// not believed of it (see isOn).
const seenFor = 15 * time.Second

// lastSeen is on which hosts VMs were of late.
type lastSeen struct {
	mu    sync.Mutex
	hosts map[cluster.VMID]sighting
}

type sighting struct {
	host string
	at   time.Time
}

// list notes what the cluster's list, asked for at that time, says. Where it has
// no state of a VM, the host may be away.
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

// add notes that Proxmox has put a VM on that host, or has read it there after
// its list was asked for at that time.
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
	passed := max(time.Since(s.at), time.Now().Round(0).Sub(s.at.Round(0))) // by the wall's clock where this machine slept
	return s.host, found && passed < seenFor
}

func (l *lastSeen) forget(id cluster.VMID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, id)
}

// whereSeen reads a VM where it was of late; found is false where it is to be
// looked for: no VM is known there any more, or none that we may know of (a token
// whose rights come with a pool has none to a VM that is gone). Of a host that does
// not answer the list decides whether the VM is still there; it is not asked twice.
func (c *Client) whereSeen(ctx context.Context, id cluster.VMID, read reading) (vm cluster.VM, found bool, err error) {
	host, known := c.seen.of(id)
	if !known {
		return vm, false, nil
	}
	vm = cluster.VM{ID: id, Host: host}
	err = read(ctx, &vm)
	_, answered := errors.AsType[*Error](err)
	switch {
	case err == nil:
		return vm, true, nil
	case isUnanswered(err):
		defer c.seen.forget(id)
		rows, errList := c.resources(ctx)
		still := slices.ContainsFunc(rows, func(r resource) bool { return cluster.VMID(r.VMID) == id && r.Node == host })
		if errList != nil || still {
			return cluster.VM{}, true, errors.Join(c.away(ctx, vm, err), errList)
		}
		return cluster.VM{}, false, nil
	}
	c.seen.forget(id)
	return cluster.VM{}, !answered, err
}
