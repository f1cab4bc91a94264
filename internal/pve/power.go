package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

// settleTime bounds how long a VM may take to show the effect of a finished task. If
// Proxmox HA manages the VM, the task only queues the request.
const settleTime = 2 * time.Minute

// Start implements cluster.Power. A VM that already runs counts as started.
func (c *Client) Start(ctx context.Context, vm cluster.VM) error {
	err := c.switchTo(ctx, vm, "start", "running", nil)
	if e, ok := errors.AsType[*api.TaskError](err); ok && strings.HasSuffix(e.Exit, "already running") {
		err = nil
	}
	if err != nil {
		return err
	}
	return c.awaitState(ctx, vm, "running", settleTime)
}

// Shutdown implements cluster.Power. The VM still runs if it did not power off in time.
func (c *Client) Shutdown(ctx context.Context, vm cluster.VM, grace time.Duration) error {
	// Rounded up: a timeout of 0 would not wait for the guest at all.
	seconds := max(1, int((grace+time.Second-1)/time.Second))
	params := map[string]string{"timeout": strconv.Itoa(seconds), "forceStop": "0"}
	if err := c.switchTo(ctx, vm, "shutdown", "stopped", params); err != nil {
		return err
	}
	// If Proxmox HA manages the VM, the guest's grace period begins when the task ends.
	return c.awaitState(ctx, vm, "stopped", grace+settleTime)
}

// Stop implements cluster.Power.
func (c *Client) Stop(ctx context.Context, vm cluster.VM) error {
	if err := c.switchTo(ctx, vm, "stop", "stopped", nil); err != nil {
		return err
	}
	return c.awaitState(ctx, vm, "stopped", settleTime)
}

// switchTo requests another state. If Proxmox HA manages the VM, an HA task forwards
// the request (Qemu.pm, vm_start, vm_stop and vm_shutdown).
func (c *Client) switchTo(ctx context.Context, vm cluster.VM, what, state string, params map[string]string) error {
	if params == nil {
		params = map[string]string{}
	}
	kind := "qm" + what
	if vm.HA {
		kind = "hastop"
		if state == "running" {
			kind = "hastart"
		}
	}
	return c.changes.carryOut(ctx, mutation{
		method: http.MethodPost, path: vmPath(vm, "status/"+what), params: params,
		worker: vmWorker(vm, kind), lockable: true, unseen: true, look: c.seeState(vm, state),
		repeatable: state == "running", // a running VM is not started again
	})
}

// awaitState waits until QEMU itself is in that state: a "running" VM may be one
// that QEMU has paused because of an error.
func (c *Client) awaitState(ctx context.Context, vm cluster.VM, state string, within time.Duration) error {
	w := wait.For{Name: fmt.Sprintf("VM %d %s", vm.ID, state), First: firstPoll, Every: c.conn.Poll, Timeout: within}
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		s, err := c.vmStatus(ctx, vm)
		if err != nil {
			return false, "", api.StopOnAnswer(err)
		}
		c.seen.isOff(vm.ID, s.Status == "stopped")
		seen := s.Status
		if s.QMP != "" && s.QMP != s.Status {
			seen += ", " + s.QMP
		}
		switch s.QMP {
		case "internal-error", "io-error", "guest-panicked":
			if state == "running" {
				return false, "", wait.Stop(errors.New(seen))
			}
		}
		return s.Status == state && (s.QMP == state || s.QMP == "" && state == "stopped"), seen, nil
	})
}

// seeState checks whether a VM is on or off.
func (c *Client) seeState(vm cluster.VM, state string) func(context.Context) (sight, error) {
	return func(ctx context.Context) (sight, error) {
		s, err := c.vmStatus(ctx, vm)
		if err != nil {
			return sight{}, err
		}
		seen := sight{state: untouched, what: vm.String() + " is " + s.Status}
		if s.Status == state {
			seen.state = reached
		}
		return seen, nil
	}
}

// Migration implements cluster.TieReader (qemu-server, API2/Qemu.pm, migrate_vm_precondition).
func (c *Client) Migration(ctx context.Context, vm cluster.VM, to string) (cluster.Migration, error) {
	var answer struct {
		Allowed   []string                 `json:"allowed_nodes"`
		NotOn     json.RawMessage          `json:"not_allowed_nodes"` // an empty list where there are none, in older versions
		Disks     []struct{ Volid string } `json:"local_disks"`
		Resources []string                 `json:"local_resources"`
		Mapped    []string                 `json:"mapped-resources"`
		Dependent []string                 `json:"dependent-ha-resources"`
	}
	if err := c.conn.Get(ctx, vmPath(vm, "migrate")+"?target="+url.QueryEscape(to), &answer); err != nil {
		return cluster.Migration{}, err
	}
	m := cluster.Migration{Allowed: slices.Contains(answer.Allowed, to), Resources: answer.Resources, Along: answer.Dependent}
	for _, d := range answer.Disks {
		m.LocalDisks = append(m.LocalDisks, d.Volid)
	}
	m.WhileOff = slices.DeleteFunc(slices.Clone(answer.Resources), func(r string) bool { return slices.Contains(answer.Mapped, r) })
	if !m.Allowed {
		m.Lacks = lacks(answer.NotOn, to)
	}
	slices.Sort(m.LocalDisks)
	return m, nil
}

// lacks says in words what a host does not have for a VM.
func lacks(raw json.RawMessage, host string) []string {
	var hosts map[string]map[string][]json.RawMessage
	if err := json.Unmarshal(raw, &hosts); err != nil {
		return nil // the host is not among the allowed ones: that is enough
	}
	var out []string
	for _, what := range slices.Sorted(maps.Keys(hosts[host])) {
		for _, one := range hosts[host][what] {
			text := scalar(one)
			switch what {
			case "unavailable_storages":
				text = "storage " + text
			case "unavailable-resources":
				text = "what is mapped for " + text
			default:
				text = fmt.Sprintf("%s (%s)", what, one)
			}
			out = append(out, text)
		}
	}
	return out
}

// Migrate implements cluster.Power. Once the VM is there, a second request finds no such VM on the old
// host.
func (c *Client) Migrate(ctx context.Context, vm cluster.VM, to string) error {
	if vm.HA { // such a request has no task that ends with it
		return fault.Refusedf("Proxmox HA manages %s, and decides itself where it runs", vm)
	}
	params := map[string]string{"target": to}
	if vm.Running {
		params["online"] = "1"
	}
	err := c.changes.carryOut(ctx, mutation{
		method: http.MethodPost, path: vmPath(vm, "migrate"), params: params,
		worker: vmWorker(vm, "qmigrate"), repeatable: true, look: c.seeMigrated(vm, to),
	})
	if err != nil {
		return err
	}
	w := wait.For{Name: fmt.Sprintf("VM %d on %s", vm.ID, to), First: firstPoll, Every: c.conn.Poll, Timeout: settleTime}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		seen, err := c.seeMigrated(vm, to)(ctx)
		return seen.state == reached, seen.what, api.StopOnAnswer(err)
	})
	if err == nil {
		c.seen.add(vm.ID, sighting{host: to, at: time.Now(), off: !vm.Running})
	}
	return err
}

// seeMigrated checks on which of the two hosts a VM is, and whether a task has locked it.
func (c *Client) seeMigrated(vm cluster.VM, to string) func(context.Context) (sight, error) {
	return func(ctx context.Context) (sight, error) {
		for _, host := range []string{to, vm.Host} {
			now := cluster.VM{ID: vm.ID, Host: host, Name: vm.Name}
			err := c.readConfig(ctx, &now)
			seen := sight{state: untouched, what: fmt.Sprintf("VM %d is on %s", vm.ID, host)}
			switch {
			case isNoConfig(err):
				continue
			case err != nil:
				return sight{}, err
			case now.Lock == "migrate":
				seen.state, seen.what = partial, seen.what+", and is being migrated"
			case host == to:
				seen.state = reached
			}
			return seen, nil
		}
		return sight{state: partial, what: fmt.Sprintf("VM %d is neither on %s nor on %s", vm.ID, vm.Host, to)}, nil
	}
}
