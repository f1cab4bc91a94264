package pve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
)

// unreachableHosts collects the hosts that do not answer, and the VMs on them.
type unreachableHosts struct {
	mu  sync.Mutex
	why map[string]string // by host
	vms []cluster.VM
}

// offline returns the hosts that the cluster reports as offline. They are not
// queried: each request would take 30 s to fail. Proxmox reports this to every user,
// from its current membership (pve-manager, API2Tools.pm, extract_node_stats); the
// state of a VM there stays unchanged for minutes.
func (c *Client) offline(ctx context.Context) (*unreachableHosts, error) {
	_, offline, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	away := &unreachableHosts{why: map[string]string{}}
	for _, host := range offline {
		away.why[host] = cluster.IsOffline
	}
	return away, nil
}

func (a *unreachableHosts) has(host string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.why[host] != ""
}

// noteIfUnreachable reports whether err means that the VM's host does not answer. If so, it
// records both, so that the host's other VMs need not be queried.
func (a *unreachableHosts) noteIfUnreachable(vm cluster.VM, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if moved, ok := errors.AsType[*cluster.HostsAway](err); ok {
		for _, h := range moved.Hosts {
			a.why[h.Name] = h.Why
		}
		a.vms = append(a.vms, moved.VMs...)
		return true
	}
	if !api.IsUnanswered(err) {
		return false
	}
	e, _ := errors.AsType[*api.Error](err)
	a.why[vm.Host] = fmt.Sprintf("does not answer (%d %s)", e.Status, e.Said())
	a.vms = append(a.vms, vm)
	return true
}

// addVM records a VM on such a host.
func (a *unreachableHosts) addVM(vm cluster.VM) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.vms = append(a.vms, vm)
}

// err is nil while no VM is missing, even if hosts are unreachable. It must be the
// last call on a.
func (a *unreachableHosts) err() error {
	if len(a.vms) == 0 {
		return nil
	}
	e := &cluster.HostsAway{VMs: slices.Clone(a.vms)}
	slices.SortFunc(e.VMs, func(a, b cluster.VM) int { return cmp.Compare(a.ID, b.ID) })
	for _, vm := range e.VMs {
		if !slices.ContainsFunc(e.Hosts, func(h cluster.AwayHost) bool { return h.Name == vm.Host }) {
			e.Hosts = append(e.Hosts, cluster.AwayHost{Name: vm.Host, Why: a.why[vm.Host]})
		}
	}
	slices.SortFunc(e.Hosts, func(a, b cluster.AwayHost) int { return cmp.Compare(a.Name, b.Name) })
	return e.Hinted()
}

// unreachable returns the error for a VM whose host is offline, or failed to answer with
// cause.
func (c *Client) unreachable(ctx context.Context, vm cluster.VM, cause error) error {
	hosts, err := c.offline(ctx)
	switch {
	case err != nil:
		return errors.Join(cause, err)
	case hosts.has(vm.Host):
		hosts.addVM(vm)
	default:
		hosts.noteIfUnreachable(vm, cause)
	}
	return hosts.err()
}
