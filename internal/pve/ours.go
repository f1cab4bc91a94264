package pve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
)

// Trust sets what else is believed. Call it before the client is used.
func (c *Client) Trust(t cluster.Trust) { c.proofs.Trust = t }

// proofs are the parking VMs that this process has proven to be ours.
type proofs struct {
	cluster.Trust

	mu      sync.Mutex
	made    map[cluster.VMID]bool   // by this process, and not read since
	proven  map[cluster.VMID]string // by number, their SMBIOS UUIDs: another VM with the number has another one
	foreign map[cluster.VMID]judged
}

// judged is a VM that is not ours, as judged then.
type judged struct {
	uuid, why string
	at        time.Time
}

// foreignFor is how long that judgement holds: others' parking VMs are not asked about each time that VMs are read.
const foreignFor = 5 * time.Minute

func (p *proofs) isForeign(vm cluster.VM) (why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.foreign[vm.ID]; f.uuid == vm.UUID() && time.Since(f.at) < foreignFor {
		return f.why
	}
	return ""
}

func (p *proofs) setForeign(vm cluster.VM, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.foreign[vm.ID] = judged{vm.UUID(), why, time.Now()}
}

// makes notes that this process has created a VM with the number, or deletes it.
func (p *proofs) makes(id cluster.VMID, made bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made[id] = made
}

// has reports whether the VM was proven; fresh: only now, because this process has made it.
func (p *proofs) has(vm cluster.VM) (proven, fresh bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if uuid, known := p.proven[vm.ID]; known && uuid == vm.UUID() {
		return true, false
	}
	return p.made[vm.ID], true
}

// add notes that the VM is ours.
func (p *proofs) add(vm cluster.VM) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.made, vm.ID)
	p.proven[vm.ID] = vm.UUID()
	if p.Known == nil {
		return nil
	}
	return p.Known.Add(vm)
}

// notOurs says why a VM that says it is a parking VM is not believed; "": it is proven to be ours. Whoever may create
// VMs can write a record into one's Notes. It is ours if this project has proven it before, if our token or its user
// has created it, or if it is in a pool of the nodes.
func (c *Client) notOurs(ctx context.Context, vm cluster.VM) (string, error) {
	if proven, fresh := c.proofs.has(vm); proven && !fresh {
		return "", nil
	} else if proven {
		return "", c.remember(vm)
	}
	if c.proofs.Known != nil {
		if known, err := c.proofs.Known.Has(vm); known || err != nil {
			return "", err
		}
	}
	if why := c.proofs.isForeign(vm); why != "" {
		return why, nil
	}
	switch {
	case !strings.HasPrefix(vm.Name, cluster.ParkingName("")):
		return fmt.Sprintf("its name does not begin with %s", cluster.ParkingName("")), nil
	case slices.ContainsFunc(slices.Collect(maps.Keys(vm.Config)), netKey.MatchString):
		return "it has a network card, which recast gives no parking VM", nil
	}
	for _, proof := range []func(context.Context, cluster.VM) (bool, error){c.createdByUs, c.inNodesPool} {
		if is, err := proof(ctx, vm); err != nil {
			return "", fmt.Errorf("find out who made %s: %w", vm, err)
		} else if is {
			return "", c.remember(vm)
		}
	}
	why := fmt.Sprintf("no task log has that %s made it, and it is in no pool of the nodes", c.conn.User())
	c.proofs.setForeign(vm, why)
	return why, nil
}

var netKey = regexp.MustCompile(`^net\d+$`)

// Confirm remembers that a VM is one of our parking VMs, whoever made it.
func (c *Client) Confirm(ctx context.Context, id cluster.VMID) error {
	vm, err := c.VMConfig(ctx, id)
	switch {
	case err != nil:
		return fmt.Errorf("look up VM %d: %w", id, err)
	case !vm.IsParking():
		return fault.Refusedf("%s does not say that it is a parking VM: neither its name nor its Notes", vm)
	case vm.UUID() == "":
		return fault.Refusedf("%s has no SMBIOS UUID (smbios1), by which it could be known again", vm)
	}
	return c.proofs.add(vm)
}

func (c *Client) remember(vm cluster.VM) error {
	if err := c.proofs.add(vm); err != nil {
		c.conn.Warn(fmt.Sprintf("%s is ours, but this can't be remembered for when the task logs are gone: %v", vm, err))
	}
	return nil
}

// createdByUs reports whether our token, or its user, has created the VM. Its task is in the log of the host where it
// was created, and a token without Sys.Audit sees its own tasks only (pve-manager, API2/Tasks.pm, node_tasks).
func (c *Client) createdByUs(ctx context.Context, vm cluster.VM) (bool, error) {
	if is, err := c.createdOn(ctx, vm.Host, vm); is || err != nil {
		return is, err
	}
	online, _, err := c.Nodes(ctx)
	for _, host := range online {
		if host == vm.Host || err != nil {
			continue
		}
		var is bool
		if is, err = c.createdOn(ctx, host, vm); is {
			return true, nil
		}
	}
	return false, err
}

func (c *Client) createdOn(ctx context.Context, host string, vm cluster.VM) (bool, error) {
	var rows []struct {
		UPID    string
		Status  string
		EndTime int64
	}
	path := fmt.Sprintf("/nodes/%s/tasks?source=all&typefilter=qmcreate&vmid=%d", url.PathEscape(host), vm.ID)
	if err := c.conn.Get(ctx, path, &rows); err != nil {
		return false, err
	}
	var errs []error
	for _, r := range rows {
		u, err := api.ParseUPID(r.UPID)
		user, _, _ := strings.Cut(u.User, "!")
		switch {
		case err != nil:
			errs = append(errs, err)
		case user == c.conn.User() && (r.EndTime == 0 || r.Status == "OK" || strings.HasPrefix(r.Status, "WARNINGS")) && bornIn(vm, u.Start, r.EndTime):
			return true, nil
		}
	}
	return false, errors.Join(errs...)
}

var created = regexp.MustCompile(`\bctime=(\d+)`)

// bornIn reports whether a task that ran then can have created the VM, which says when it was made: nobody can set that
// (qemu-server, MetaInfo.pm; VMs made before Proxmox 7 do not say it). ended is 0 while the task runs.
func bornIn(vm cluster.VM, began time.Time, ended int64) bool {
	m := created.FindStringSubmatch(vm.Config["meta"])
	if m == nil {
		return true
	}
	at, err := strconv.ParseInt(m[1], 10, 64)
	const slack = 5 // seconds
	return err == nil && at >= began.Unix()-slack && (ended == 0 || at <= ended+slack)
}

// inNodesPool reports whether the VM is in a pool of the nodes.
func (c *Client) inNodesPool(ctx context.Context, vm cluster.VM) (bool, error) {
	rows, err := c.resources(ctx)
	if err != nil {
		return false, err
	}
	row, _ := listedIn(rows, vm.ID)
	return row.Pool != "" && (slices.Contains(c.proofs.Pools, row.Pool) || slices.ContainsFunc(rows, func(r resource) bool {
		return r.Pool == row.Pool && slices.Contains(c.proofs.Nodes, cluster.VMID(r.VMID))
	})), nil
}
