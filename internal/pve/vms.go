package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

// VMs implements cluster.VMReader. It fails if any VM's configuration cannot be
// read, because any VM may reference a volume. If unreachable hosts are the only
// cause, the error is a *cluster.HostsAway and all other VMs are returned.
//
// The list is the guest register of the node that answers, with each VM's lock at
// that time (pve-manager, PVE/API2/Cluster.pm, resources). All nodes apply changes
// in the same order, but a node may lag. If the list shows a VM in creation that its
// host shows as complete, VMs completed before it may be missing: the list is read
// again.
func (c *Client) VMs(ctx context.Context) ([]cluster.VM, error) {
	for range relists {
		var rows []resource
		var offline *unreachableHosts
		err := wait.All(
			func() (err error) {
				rows, err = c.resources(ctx)
				return err
			},
			func() (err error) {
				offline, err = c.offline(ctx)
				return err
			},
		)
		if err != nil {
			return nil, err
		}
		vms, away, err := c.configsOf(ctx, rows, offline)
		if err != nil {
			return nil, err
		}
		if !behind(rows, vms) {
			return vms, away
		}
	}
	return nil, fmt.Errorf("list the VMs: the list is behind their configurations, %d times in a row", relists)
}

// relists bounds how often the list is read again because VMs were created
// meanwhile.
const relists = 10

// behind reports whether a VM is complete that the list shows in creation.
func behind(rows []resource, vms []cluster.VM) bool {
	return slices.ContainsFunc(vms, func(vm cluster.VM) bool {
		return vm.Lock != createLock && slices.ContainsFunc(rows, func(r resource) bool { return cluster.VMID(r.VMID) == vm.ID && r.Lock == createLock })
	})
}

// createLock is the lock of a VM that is being created (qemu-server,
// PVE/API2/Qemu.pm, create_vm; pve-guest-common, AbstractConfig.pm, create_and_lock_config).
const createLock = "create"

// configsOf reads the configurations of the listed VMs, except on the hosts that are
// away. lacking is the error for those on hosts that do not answer; nil if there are none.
func (c *Client) configsOf(ctx context.Context, rows []resource, away *unreachableHosts) (found []cluster.VM, lacking, err error) {
	vms := make([]*cluster.VM, len(rows)) // nil: deleted, or unreachable
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(api.ReadsAtOnce)
	for i, row := range rows {
		g.Go(func() error {
			listed := fromResource(row)
			if away.has(listed.Host) {
				away.addVM(listed)
				return nil
			}
			vm := listed
			err := c.readConfig(ctx, &vm)
			if isNoConfig(err) {
				// Deleted or moved since the list was read: look up this VM alone.
				if vm, err = c.VM(ctx, vm.ID); err == nil {
					vm.Pool = listed.Pool
				}
			}
			switch {
			case errors.Is(err, cluster.ErrNotFound):
				return nil
			case away.noteIfUnreachable(listed, err):
				return nil
			}
			vms[i] = &vm
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	for _, vm := range vms {
		if vm != nil {
			found = append(found, *vm)
		}
	}
	slices.SortFunc(found, func(a, b cluster.VM) int { return cmp.Compare(a.ID, b.ID) })
	return found, away.err(), nil
}

// Listed lists every VM in the cluster's list: without configurations, and about 10
// s late.
func (c *Client) Listed(ctx context.Context) ([]cluster.VM, error) {
	rows, err := c.resources(ctx)
	if err != nil {
		return nil, err
	}
	vms := make([]cluster.VM, len(rows))
	for i, row := range rows {
		vms[i] = fromResource(row)
	}
	return vms, nil
}

// Pool implements cluster.VMReader.
func (c *Client) Pool(ctx context.Context, id cluster.VMID) (string, error) {
	rows, err := c.resources(ctx)
	if err != nil {
		return "", err
	}
	return poolOf(rows, id)
}

func poolOf(rows []resource, id cluster.VMID) (string, error) {
	i := slices.IndexFunc(rows, func(r resource) bool { return cluster.VMID(r.VMID) == id })
	if i < 0 {
		return "", fmt.Errorf("find the pool of VM %d: %w", id, cluster.ErrNotFound)
	}
	return rows[i].Pool, nil
}

// resource is a row of the cluster's list of VMs, without metrics.
type resource struct {
	Type, Node, Name, Pool, Status, HAState, Lock, Tags string

	VMID     flexInt
	Template json.RawMessage
}

func (c *Client) resources(ctx context.Context) ([]resource, error) {
	var rows []resource
	asked := time.Now()
	if err := c.conn.Get(ctx, "/cluster/resources?type=vm", &rows); err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(r resource) bool { return r.Type != "qemu" })
	c.seen.list(rows, asked)
	return rows, nil
}

func fromResource(r resource) cluster.VM {
	return cluster.VM{
		ID: cluster.VMID(r.VMID), Name: r.Name, Host: r.Node, Pool: r.Pool,
		Running: r.Status == "running", Template: toBool(r.Template), HA: r.HAState != "",
	}
}

// readVM fills in the configuration and the current state, asked for at the same time:
// neither is as of the other, in whatever order they are read.
func (c *Client) readVM(ctx context.Context, vm *cluster.VM) error {
	state := *vm
	var g errgroup.Group
	g.Go(func() error { return c.readState(ctx, &state) })
	err, errState := c.readConfig(ctx, vm), g.Wait()
	vm.Name = cmp.Or(vm.Name, state.Name)
	vm.Running, vm.QMP, vm.HA = state.Running, state.QMP, state.HA
	return cmp.Or(err, errState)
}

// readState fills in the current state.
func (c *Client) readState(ctx context.Context, vm *cluster.VM) error {
	s, err := c.vmStatus(ctx, *vm)
	if err != nil {
		return err
	}
	vm.Name = cmp.Or(vm.Name, s.Name)
	vm.Running, vm.QMP, vm.HA = s.Status == "running", s.QMP, toBool(s.HA.Managed)
	return nil
}

// readConfig fills in the configuration. Digest is that of the configuration read
// here: a concurrent change is detected when the digest is used.
func (c *Client) readConfig(ctx context.Context, vm *cluster.VM) error {
	var rows []pendingRow
	if err := c.conn.Get(ctx, vmPath(*vm, "pending"), &rows); err != nil {
		return err
	}
	raw := mergePending(rows)
	if len(raw["digest"]) == 0 { // Proxmox's schema does not promise a digest
		raw = nil
		if err := c.conn.Get(ctx, vmPath(*vm, "config"), &raw); err != nil {
			return err
		}
	}
	config, digest, err := raw.normalise()
	if err != nil {
		return fmt.Errorf("configuration of VM %d: %w", vm.ID, err)
	}
	vm.Config, vm.Digest, vm.Pending = config, digest, pendingKeys(rows)
	vm.Lock = config["lock"]
	vm.Template = config["template"] == "1"
	vm.Name = cmp.Or(config["name"], vm.Name)
	return nil
}

type vmStatus struct {
	Name   string `json:"name"`
	Status string `json:"status"`    // "running" or "stopped"
	QMP    string `json:"qmpstatus"` // QEMU's own status
	HA     struct {
		Managed json.RawMessage `json:"managed"`
	} `json:"ha"`
}

func (c *Client) vmStatus(ctx context.Context, vm cluster.VM) (vmStatus, error) {
	var s vmStatus
	err := c.conn.Get(ctx, vmPath(vm, "status/current"), &s)
	return s, err
}

// vmPath is the path of a VM's resource below its host; what may be "".
func vmPath(vm cluster.VM, what string) string {
	path := fmt.Sprintf("/nodes/%s/qemu/%d", url.PathEscape(vm.Host), vm.ID)
	if what == "" {
		return path
	}
	return path + "/" + what
}

var noConfig = regexp.MustCompile(`Configuration file '[^']*' does not exist`)

// isNoConfig reports whether the host has no such VM; another host may have it.
func isNoConfig(err error) bool {
	return api.IsInternal(err, noConfig)
}

// Containers lists every container that the token may see, sorted by number. VMs and
// containers share one range of numbers.
func (c *Client) Containers(ctx context.Context) ([]cluster.Container, error) {
	var rows []resource
	if err := c.conn.Get(ctx, "/cluster/resources?type=vm", &rows); err != nil {
		return nil, err
	}
	var out []cluster.Container
	for _, r := range rows {
		if r.Type == "lxc" {
			out = append(out, cluster.Container{ID: cluster.VMID(r.VMID), Name: r.Name, Host: r.Node})
		}
	}
	slices.SortFunc(out, func(a, b cluster.Container) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// snapshots lists the VM's snapshots by name. Proxmox's list ends with the current
// state, named "current".
func (c *Client) snapshots(ctx context.Context, vm cluster.VM) ([]string, error) {
	var rows []struct{ Name string }
	if err := c.conn.Get(ctx, vmPath(vm, "snapshot"), &rows); err != nil {
		return nil, err
	}
	var names []string
	for _, r := range rows {
		if r.Name != "current" {
			names = append(names, r.Name)
		}
	}
	return names, nil
}
