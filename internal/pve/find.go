package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

// listLag bounds how far the cluster's list of VMs may lag: Proxmox renews it about
// every 10 s.
const listLag = 30 * time.Second

// reading fills in one part of a VM whose host is known.
type reading func(ctx context.Context, vm *cluster.VM) error

// VM implements cluster.VMReader.
func (c *Client) VM(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	return c.findVM(ctx, id, c.readVM, isOn)
}

// VMConfig implements cluster.VMReader.
func (c *Client) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := c.findVM(ctx, id, c.readConfig, nil)
	vm.Running, vm.QMP, vm.HA = true, "", false
	return vm, err
}

// VMState implements cluster.VMReader.
func (c *Client) VMState(ctx context.Context, id cluster.VMID) (cluster.VMState, error) {
	vm, err := c.findVM(ctx, id, c.readState, isOn)
	return vm.State(), err
}

// isOn proves that a VM is where it was seen. One that is off there may run
// elsewhere by now, unknown to its old host if that is cut off from the cluster.
func isOn(vm cluster.VM) bool { return vm.Running }

// findVM reads a VM on whichever host it is. A read at the host where it was last seen counts
// only if proves accepts it; nil accepts any.
func (c *Client) findVM(ctx context.Context, id cluster.VMID, read reading, proves func(cluster.VM) bool) (cluster.VM, error) {
	vm, found, err := c.whereSeen(ctx, id, read, proves)
	if found {
		return vm, err
	}
	start := time.Now()
	w := wait.For{Name: fmt.Sprintf("find VM %d", id), Every: c.conn.Poll}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		var err error
		vm, err = c.lookupVM(ctx, id, read)
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

// lookupVM reads a VM where the cluster's list says it is. If the list and the nodes
// disagree, only Proxmox's register of numbers can tell that it does not exist.
func (c *Client) lookupVM(ctx context.Context, id cluster.VMID, read reading) (cluster.VM, error) {
	asked := time.Now()
	var rows []resource
	free := func() (bool, error) { return c.isFree(ctx, id) }
	err := wait.All(
		func() (err error) {
			rows, err = c.resources(ctx)
			return err
		},
		func() error {
			if c.seen.isGone(id) { // the list probably shows no such VM
				is, err := c.isFree(ctx, id)
				free = func() (bool, error) { return is, err }
			}
			return nil
		},
	)
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
			c.seen.add(id, sighting{host: vm.Host, at: asked, off: !vm.Running, stateless: rows[i].Status == "unknown"})
		}
		if api.IsUnanswered(err) {
			return cluster.VM{}, c.unreachable(ctx, vm, err)
		}
		if !isNoConfig(err) {
			return vm, err
		}
	}
	isFree, err := free()
	switch {
	case err != nil:
		return cluster.VM{}, err
	case isFree:
		return cluster.VM{}, cluster.ErrNotFound
	}
	return cluster.VM{}, &staleError{errors.New("its number is taken, but no node shows it")}
}

// isFree asks Proxmox's register of VMIDs, which includes VMs that our token may not
// see.
func (c *Client) isFree(ctx context.Context, id cluster.VMID) (bool, error) {
	var next json.RawMessage
	err := c.conn.Get(ctx, fmt.Sprintf("/cluster/nextid?vmid=%d", id), &next)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status == http.StatusBadRequest && strings.Contains(e.Params["vmid"], "already exists") {
		return false, nil
	}
	return err == nil, err
}
