package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// listLag bounds how far the cluster's list of VMs may lag: Proxmox renews it about
// every 10 s.
const listLag = 30 * time.Second

// TokenID implements cluster.Access.
func (c *Client) TokenID() string { return c.tokenID }

// Permissions implements cluster.Access. It asks for this path only: Proxmox's list
// of all paths omits those where an entry removes every privilege
// (pve-access-control, RPCEnvironment.pm, get_effective_permissions).
func (c *Client) Permissions(ctx context.Context, path string) (cluster.Privileges, error) {
	return c.permissions(ctx, path, "")
}

func (c *Client) permissions(ctx context.Context, path, of string) (cluster.Privileges, error) {
	var paths map[string]map[string]json.RawMessage
	if err := c.get(ctx, "/access/permissions?path="+url.QueryEscape(path)+of, &paths); err != nil {
		return nil, err
	}
	held := make(cluster.Privileges, len(paths[path]))
	for privilege, propagates := range paths[path] {
		held[privilege] = toBool(propagates) // every listed privilege is granted
	}
	return held, nil
}

// Quorate implements cluster.Inventory. A node outside a cluster is quorate.
func (c *Client) Quorate(ctx context.Context) (bool, error) {
	var rows []struct {
		Type    string          `json:"type"`
		Quorate json.RawMessage `json:"quorate"`
	}
	if err := c.get(ctx, "/cluster/status", &rows); err != nil {
		return false, err
	}
	nodes := 0
	for _, row := range rows {
		switch row.Type {
		case "cluster":
			return toBool(row.Quorate), nil
		case "node":
			nodes++
		}
	}
	if nodes != 1 {
		return false, fmt.Errorf("the status of the Proxmox cluster shows neither a cluster nor a single node (%d nodes)", nodes)
	}
	return true, nil
}

// VMs implements cluster.Inventory. It fails if any VM's configuration cannot be
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
		rows, err := c.resources(ctx)
		if err != nil {
			return nil, err
		}
		vms, away, err := c.configsOf(ctx, rows)
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

// configsOf reads the configurations of the listed VMs. lacking is the error for
// those on hosts that do not answer; nil if there are none.
func (c *Client) configsOf(ctx context.Context, rows []resource) (found []cluster.VM, lacking, err error) {
	away, err := c.offline(ctx)
	if err != nil {
		return nil, nil, err
	}
	vms := make([]*cluster.VM, len(rows)) // nil: deleted, or unreachable
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
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

// reading fills in one part of a VM whose host is known.
type reading func(ctx context.Context, vm *cluster.VM) error

// VM implements cluster.Inventory.
func (c *Client) VM(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	return c.find(ctx, id, c.readVM, isOn)
}

// VMConfig implements cluster.Inventory.
func (c *Client) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := c.find(ctx, id, c.readConfig, nil)
	vm.Running, vm.QMP, vm.HA = true, "", false
	return vm, err
}

// VMState implements cluster.Inventory.
func (c *Client) VMState(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	return c.find(ctx, id, c.readState, isOn)
}

// isOn proves that a VM is where it was seen. One that is off there may run
// elsewhere by now, unknown to its old host if that is cut off from the cluster.
func isOn(vm cluster.VM) bool { return vm.Running }

// Pool implements cluster.Inventory.
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

// find reads a VM on whichever host it is. A read at the host where it was last seen counts
// only if proves accepts it; nil accepts any.
func (c *Client) find(ctx context.Context, id cluster.VMID, read reading, proves func(cluster.VM) bool) (cluster.VM, error) {
	vm, found, err := c.whereSeen(ctx, id, read)
	if found && (err != nil || proves == nil || proves(vm)) {
		return vm, err
	}
	start := time.Now()
	w := wait.For{Name: fmt.Sprintf("find VM %d", id), Every: c.poll}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		var err error
		vm, err = c.lookup(ctx, id, read)
		if isStale(err) && time.Since(start) < listLag {
			return false, "", err
		}
		return err == nil, "", wait.Stop(err)
	})
	if isStale(err) {
		err = fault.WithHint(fault.TokenPrivileges.Of(err), "it may be a container, or the token lacks VM.Audit on /vms/%d", id)
	}
	vm.Pool = "" // whereSeen does not know it either
	return vm, err
}

// staleError says that Proxmox's list of VMs and its VMs currently disagree.
type staleError struct{ error }

func (e *staleError) Unwrap() error { return e.error }

func isStale(err error) bool {
	_, ok := errors.AsType[*staleError](err)
	return ok
}

// lookup reads a VM where the cluster's list says it is. If the list and the nodes
// disagree, only Proxmox's register of numbers can tell that it does not exist.
func (c *Client) lookup(ctx context.Context, id cluster.VMID, read reading) (cluster.VM, error) {
	asked := time.Now()
	rows, err := c.resources(ctx)
	if err != nil {
		return cluster.VM{}, err
	}
	i := slices.IndexFunc(rows, func(r resource) bool { return cluster.VMID(r.VMID) == id })
	if i >= 0 {
		vm := fromResource(rows[i])
		if rows[i].Status == "unknown" { // its host has not reported for minutes
			if err := c.unreachable(ctx, vm, nil); err != nil {
				return cluster.VM{}, err
			}
		}
		err := read(ctx, &vm)
		if err == nil {
			c.seen.add(id, vm.Host, asked)
		}
		if isUnanswered(err) {
			return cluster.VM{}, c.unreachable(ctx, vm, err)
		}
		if !isNoConfig(err) {
			return vm, err
		}
	}
	free, err := c.isFree(ctx, id)
	switch {
	case err != nil:
		return cluster.VM{}, err
	case free:
		return cluster.VM{}, cluster.ErrNotFound
	}
	return cluster.VM{}, &staleError{errors.New("its number is taken, but no node shows it")}
}

// isFree asks Proxmox's register of VMIDs, which includes VMs that our token may not
// see.
func (c *Client) isFree(ctx context.Context, id cluster.VMID) (bool, error) {
	var next json.RawMessage
	err := c.get(ctx, fmt.Sprintf("/cluster/nextid?vmid=%d", id), &next)
	if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusBadRequest && strings.Contains(e.Params["vmid"], "already exists") {
		return false, nil
	}
	return err == nil, err
}

// resource is a row of the cluster's list of VMs, without metrics.
type resource struct {
	Type, Node, Name, Pool, Status, HAState, Lock string

	VMID     flexInt
	Template json.RawMessage
}

func (c *Client) resources(ctx context.Context) ([]resource, error) {
	var rows []resource
	asked := time.Now()
	if err := c.get(ctx, "/cluster/resources?type=vm", &rows); err != nil {
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

// readVM fills in the configuration and the current state.
func (c *Client) readVM(ctx context.Context, vm *cluster.VM) error {
	if err := c.readConfig(ctx, vm); err != nil {
		return err
	}
	return c.readState(ctx, vm)
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
	if err := c.get(ctx, vmPath(*vm, "pending"), &rows); err != nil {
		return err
	}
	raw := mergePending(rows)
	if len(raw["digest"]) == 0 { // Proxmox's schema does not promise a digest
		raw = nil
		if err := c.get(ctx, vmPath(*vm, "config"), &raw); err != nil {
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
	err := c.get(ctx, vmPath(vm, "status/current"), &s)
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
	return isInternal(err, noConfig)
}
