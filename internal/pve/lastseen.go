package pve

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
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
	gone  map[cluster.VMID]bool // those that we deleted, and that were not seen again
}

type sighting struct {
	host string
	at   time.Time
	off  bool // it was off when it was last read, or listed

	// stateless says that the list has no state of it yet, as of a VM that was made a
	// moment ago; otherwise its host may be unreachable.
	stateless bool
}

// list records the cluster's list, requested at that time. If it has no state for a
// VM, the host may be unreachable, unless the VM was seen there just before.
func (l *lastSeen) list(rows []resource, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.hosts
	l.hosts = make(map[cluster.VMID]sighting, len(rows))
	for _, row := range rows {
		id := cluster.VMID(row.VMID)
		s, was := before[id]
		was = was && s.host == row.Node
		switch {
		case row.Status != "unknown":
			l.hosts[id] = sighting{host: row.Node, at: at, off: was && s.off || row.Status == "stopped"}
		case was:
			s.stateless = true
			l.hosts[id] = s
		}
	}
}

// add records that Proxmox put a VM on that host, or that it was read there after
// the list was requested at that time.
func (l *lastSeen) add(id cluster.VMID, s sighting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hosts == nil {
		l.hosts = map[cluster.VMID]sighting{}
	}
	l.hosts[id] = s
	delete(l.gone, id)
}

func (l *lastSeen) of(id cluster.VMID) (s sighting, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, found = l.hosts[id]
	return s, found && wait.Elapsed(s.at) < seenFor
}

// isOff notes whether the VM was off when it was read.
func (l *lastSeen) isOff(id cluster.VMID, off bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, found := l.hosts[id]; found {
		s.off = off
		l.hosts[id] = s
	}
}

// deleted records that we asked Proxmox to delete a VM.
func (l *lastSeen) deleted(id cluster.VMID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, id)
	if l.gone == nil {
		l.gone = map[cluster.VMID]bool{}
	}
	l.gone[id] = true
}

func (l *lastSeen) isGone(id cluster.VMID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone[id]
}

func (l *lastSeen) forget(id cluster.VMID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, id)
}

// whereSeen reads a VM where it was last seen. found is false if it must be looked
// up: the host no longer shows it, or the token no longer may (rights from a pool
// end with the VM), or the read proves nothing. If the host does not answer, the list
// decides whether the VM is still there; the host is not asked again.
func (c *Client) whereSeen(ctx context.Context, id cluster.VMID, read reading, proves func(cluster.VM) bool) (vm cluster.VM, found bool, err error) {
	s, known := c.seen.of(id)
	if !known {
		return vm, false, nil
	}
	vm = cluster.VM{ID: id, Host: s.host}
	var listed func() bool
	if s.stateless || s.off && proves != nil {
		listed = c.listedBeside(ctx, id, s)
	}
	err = read(ctx, &vm)
	agrees := listed != nil && listed()
	_, answered := errors.AsType[*api.Error](err)
	switch {
	case err == nil && proves == nil:
		return vm, !s.stateless || agrees, nil
	case err == nil:
		c.seen.isOff(id, !vm.Running)
		return vm, agrees || !s.stateless && proves(vm), nil
	case api.IsUnanswered(err):
		defer c.seen.forget(id)
		rows, errList := c.resources(ctx)
		still := slices.ContainsFunc(rows, func(r resource) bool { return cluster.VMID(r.VMID) == id && r.Node == s.host })
		if errList != nil || still {
			return cluster.VM{}, true, errors.Join(c.unreachable(ctx, vm, err), errList)
		}
		return cluster.VM{}, false, nil
	}
	c.seen.forget(id)
	return cluster.VM{}, !answered, err
}

// listedBeside asks for what lookupVM asks for before it reads a VM, at the same time as
// the VM is read where it was seen. The returned func waits for it, and reports whether
// the cluster's list shows the VM on that host, which belongs to the cluster.
func (c *Client) listedBeside(ctx context.Context, id cluster.VMID, s sighting) func() bool {
	asked, agrees := time.Now(), false
	var g errgroup.Group
	var away *unreachableHosts
	if s.stateless {
		g.Go(func() (err error) {
			away, err = c.offline(ctx)
			return err
		})
	}
	now := sighting{host: s.host, at: asked, off: s.off}
	g.Go(func() error {
		rows, err := c.resources(ctx)
		i := slices.IndexFunc(rows, func(r resource) bool { return cluster.VMID(r.VMID) == id && r.Node == s.host })
		now.stateless = i >= 0 && rows[i].Status == "unknown"
		agrees = i >= 0 && (s.stateless || !now.stateless)
		return err
	})
	return func() bool {
		if err := g.Wait(); err != nil || !agrees || away != nil && away.has(s.host) {
			return false // lookupVM says why
		}
		c.seen.add(id, now)
		return true
	}
}
