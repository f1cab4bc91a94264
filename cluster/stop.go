package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// isOff says whether the VM is off, or deleted, and Proxmox HA does not start it again.
func (n *nodeRoll) isOff(ctx context.Context) (bool, error) {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if errors.Is(err, ErrNotFound) {
		return true, nil
	}
	return err == nil && !vm.Running && !vm.HA, prefix(fmt.Sprintf("look up VM %d", n.plan.VMID), err)
}

func (n *nodeRoll) stopped(ctx context.Context) (string, error) {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	switch {
	case errors.Is(err, ErrNotFound):
		return fmt.Sprintf("VM %d is deleted", n.plan.VMID), nil
	case err != nil:
		return "", fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	case vm.Running || vm.HA || vm.Config["onboot"] == "1":
		return "", nil
	}
	if ties, err := n.Proxmox.Ties(ctx, vm); err != nil || ties.HA != nil {
		return "", err
	}
	return fmt.Sprintf("VM %d is stopped", vm.ID), nil
}

// stop keeps a rebooting host and Proxmox HA from starting the VM again, then
// asks the guest, then pulls the plug. It waits for the VM, not for the task.
func (n *nodeRoll) stop(ctx context.Context) error {
	vm, err := n.keepOff(ctx)
	if err != nil {
		return n.keepServing(ctx, err)
	}
	if !vm.Running {
		return nil
	}
	return n.powerOff(ctx, "take-down/stop", vm)
}

// keepOff sees to it that nobody starts the VM once it is off.
func (n *nodeRoll) keepOff(ctx context.Context) (VM, error) {
	vm, err := n.Proxmox.VM(ctx, n.plan.VMID)
	if err != nil {
		return vm, fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	ties, err := n.Proxmox.Ties(ctx, vm)
	if err != nil {
		return vm, err
	}
	if ties.HA != nil { // one that HA ignores keeps Proxmox from deleting the VM, too
		if err := n.Proxmox.RemoveHA(ctx, vm.ID); err != nil {
			return vm, fmt.Errorf("take %s out of Proxmox HA: %w", vm, err)
		}
		if vm, err = n.Proxmox.VM(ctx, vm.ID); err != nil {
			return vm, fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
		}
	}
	if vm.Config["onboot"] == "1" {
		if err := n.Proxmox.SetConfig(ctx, vm, map[string]string{"onboot": "0"}, nil); err != nil {
			return vm, fmt.Errorf("unset onboot of %s: %w", vm, err)
		}
	}
	return vm, nil
}

// keepServing leaves a node that was drained but could not be stopped as it was,
// unless its machine is no longer what it was: etcd left for good, or it does not answer.
func (n *nodeRoll) keepServing(ctx context.Context, cause error) error {
	park, err := n.parking(ctx)
	if err != nil || park.Record.Left || ctx.Err() != nil || fault.KindOf(cause) == fault.Claimed {
		return cause
	}
	if m, err := n.Talos.Machine(ctx, n.plan.Addr); err != nil || !n.isOldBoot(ctx, m) {
		return cause
	}
	for _, s := range []step.Step{{Skip: n.onbootRestored, Do: n.restoreOnboot}, {Skip: n.haRestored, Do: n.restoreHA}} {
		reason, err := s.Skip(ctx)
		if err == nil && reason == "" {
			err = s.Do(ctx)
		}
		if err != nil {
			return errors.Join(cause, err)
		}
	}
	return errors.Join(cause, n.backOut(ctx))
}

func (n *nodeRoll) powerOff(ctx context.Context, id string, vm VM) error {
	if err := n.Proxmox.Shutdown(ctx, vm, n.Timing.Stop); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("shut down %s: %w", vm, err)
		}
		n.say(id, fmt.Sprintf("the guest did not shut down (%v); pulling the plug", err))
		if err := n.Proxmox.Stop(ctx, vm); err != nil {
			return fmt.Errorf("stop %s: %w", vm, err)
		}
	}
	return n.wait(ctx, id, fmt.Sprintf("VM %d stopped", vm.ID), n.Timing.Stop, func(ctx context.Context) (bool, string, error) {
		vm, err := n.Proxmox.VM(ctx, vm.ID)
		return err == nil && !vm.Running, "still running", err
	})
}
