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
	vm, err := n.Proxmox.VMState(ctx, n.plan.VMID)
	if errors.Is(err, ErrNotFound) {
		return true, nil
	}
	return err == nil && !vm.Running && !vm.HA, fault.Prefix(fmt.Sprintf("look up VM %d", n.plan.VMID), err)
}

// switchedOff adds to what can't be had of a machine that its VM is off, which it was not meant to be.
func switchedOff(vm VM, err error) error {
	return fault.WithHint(fmt.Errorf("%s is switched off: %w", vm, err), "start %s in Proxmox", vm)
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
	if ha, err := n.Proxmox.HAResource(ctx, vm.ID); err != nil || ha != nil {
		return "", fault.Prefix("read what Proxmox HA has of "+vm.String(), err)
	}
	return fmt.Sprintf("VM %d is stopped", vm.ID), nil
}

// stoppedFor is the goal of stop: etcd does not need the node either, where it has left.
func (n *nodeRoll) stoppedFor(ctx context.Context) (string, error) {
	reason, err := n.stopped(ctx)
	if err != nil || reason == "" || !n.leavesEtcd() {
		return reason, err
	}
	if left, err := n.leftEtcd(ctx); err != nil || left == "" {
		return "", err
	}
	return reason, nil
}

// stop keeps a rebooting host and Proxmox HA from starting the VM again, then
// asks the guest, then pulls the plug. It waits for the VM, not for the task.
func (n *nodeRoll) stop(ctx context.Context) error {
	r, err := n.replace(ctx)
	if err != nil {
		return err
	}
	var vm VM
	err = n.repeat(ctx, "take-down/stop", n.repeatFor("take-down/stop"), func(ctx context.Context) error {
		vm, err = r.keepOff(ctx)
		return err
	})
	if err != nil {
		return final(n.keepServing(ctx, r, err))
	}
	if vm.Running {
		if err := n.powerOff(ctx, r, "take-down/stop", vm, n.leaveAgain); err != nil {
			return err
		}
	}
	if !n.leavesEtcd() {
		return nil
	}
	return n.staysOut(ctx, vm, "take-down/stop", n.leftEtcd)
}

// keepServing leaves a node that was drained but could not be stopped as it was,
// unless its machine is no longer what it was: etcd left for good, or it does not answer.
func (n *nodeRoll) keepServing(ctx context.Context, r *Replace, cause error) error {
	park, err := n.parking(ctx)
	if err != nil || park.Record.Left || n.outOfEtcd || ctx.Err() != nil || fault.KindOf(cause) == fault.Claimed {
		return cause
	}
	if m, err := n.Talos.Booted(ctx, n.plan.Addr); err != nil || !n.isOldBoot(ctx, m) {
		return cause
	}
	for _, s := range []step.Step{{Skip: r.settingsRestored, Do: r.restoreSettings}, {Skip: r.haRestored, Do: r.restoreHA}} {
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

// powerOff stops the VM; beforePull is asked where the guest does not do it by itself.
func (n *nodeRoll) powerOff(ctx context.Context, r *Replace, id string, vm VM, beforePull func(context.Context) error) error {
	var refused error // by the guest; what is wrong with the record is no reason to pull the plug
	err := r.sending(ctx, sentShutdown, n.Timing.Stop+LateQueue, func(ctx context.Context) error {
		refused = n.Proxmox.Shutdown(ctx, vm, n.Timing.Stop)
		return refused
	})
	if err != nil {
		if ctx.Err() != nil || refused == nil {
			return fmt.Errorf("shut down %s: %w", vm, err)
		}
		if err := beforePull(ctx); err != nil {
			return err
		}
		n.say(id, fmt.Sprintf("the guest did not shut down (%v); pulling the plug", err))
		if err := r.sending(ctx, sentStop, LateQueue, func(ctx context.Context) error { return n.Proxmox.Stop(ctx, vm) }); err != nil {
			return fmt.Errorf("stop %s: %w", vm, err)
		}
	}
	return n.wait(ctx, id, fmt.Sprintf("VM %d stopped", vm.ID), n.Timing.Stop, func(ctx context.Context) (bool, string, error) {
		vm, err := n.Proxmox.VMState(ctx, vm.ID)
		return err == nil && !vm.Running, "still running", err
	})
}
