package pve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/recast-sh/recast/cluster"
)

// awayHosts gathers the hosts that do not answer, and what is on them.
type awayHosts struct {
	mu  sync.Mutex
	why map[string]string // by host
	vms []cluster.VM
}

// offline are the hosts that the cluster has lost. Each of them would take a
// request 30 s to fail: what they have is not asked for. Proxmox says so to
// everybody, and from the membership of the moment (pve-manager, API2Tools.pm,
// extract_node_stats); the state of a VM there stays what it was for minutes.
func (c *Client) offline(ctx context.Context) (*awayHosts, error) {
	_, offline, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	away := &awayHosts{why: map[string]string{}}
	for _, host := range offline {
		away.why[host] = cluster.IsOffline
	}
	return away, nil
}

func (a *awayHosts) has(host string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.why[host] != ""
}

// because says whether an error of reading a VM is that its host does not answer.
// It notes both: the host's other VMs need not be asked for.
func (a *awayHosts) because(vm cluster.VM, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if moved, ok := errors.AsType[*cluster.HostsAway](err); ok {
		for _, h := range moved.Hosts {
			a.why[h.Name] = h.Why
		}
		a.vms = append(a.vms, moved.VMs...)
		return true
	}
	if !isUnanswered(err) {
		return false
	}
	e, _ := errors.AsType[*Error](err)
	a.why[vm.Host] = fmt.Sprintf("does not answer (%d %s)", e.Status, e.said())
	a.vms = append(a.vms, vm)
	return true
}

// missing notes a VM that is on such a host.
func (a *awayHosts) missing(vm cluster.VM) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.vms = append(a.vms, vm)
}

// err is nil as long as nothing is missing, though hosts may be away. Nobody
// else may use a any more.
func (a *awayHosts) err() error {
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

// away is the error of a VM whose host is offline, or did not answer for that cause.
func (c *Client) away(ctx context.Context, vm cluster.VM, cause error) error {
	hosts, err := c.offline(ctx)
	switch {
	case err != nil:
		return errors.Join(cause, err)
	case hosts.has(vm.Host):
		hosts.missing(vm)
	default:
		hosts.because(vm, cause)
	}
	return hosts.err()
}

// isUnanswered says that the host which was asked about something of its own did
// not answer the one that was to pass it on.
func isUnanswered(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status >= 590 && e.Status <= 599
}
