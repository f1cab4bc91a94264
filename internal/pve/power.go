package pve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
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
