package roll

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// isOff says whether the VM is off, or deleted, and Proxmox HA does not start it again.
func isOff(ctx context.Context, n *rolling.Node) (bool, error) {
	vm, err := n.Proxmox.VMState(ctx, n.Plan.VMID)
	if errors.Is(err, cluster.ErrNotFound) {
		return true, nil
	}
	return err == nil && !vm.Running && !vm.HA, fault.Prefix(fmt.Sprintf("look up VM %d", n.Plan.VMID), err)
}

// keepServing puts a drained node that could not be stopped back into service, unless its machine
// has changed: it has left etcd for good, has rebooted, or does not answer.
func (n *node) keepServing(ctx context.Context, r *exchange.Replace, cause error) error {
	park, err := n.Parking(ctx)
	if err != nil || park.Record.Left || n.etcd.outOfIt || ctx.Err() != nil || fault.KindOf(cause) == fault.Claimed {
		return cause
	}
	if m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr); err != nil || !n.IsOldBoot(ctx, m) {
		return cause
	}
	for _, s := range r.RestoreSteps() {
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

// switchOff shuts the VM down. If the guest does not shut down, switchOff calls beforePull and stops the VM.
func (n *node) switchOff(ctx context.Context, r *exchange.Replace, id string, vm cluster.VM, beforePull func(context.Context) error) error {
	var refused error // by the guest; an error about the record is no reason to pull the plug
	err := r.Sending(ctx, cluster.SentShutdown, n.Timing.Stop+exchange.LateQueue, func(ctx context.Context) error {
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
		n.Tell(id, fmt.Sprintf("the guest did not shut down (%v); pulling the plug", err))
		if err := r.Sending(ctx, cluster.SentStop, exchange.LateQueue, func(ctx context.Context) error { return n.Proxmox.Stop(ctx, vm) }); err != nil {
			return fmt.Errorf("stop %s: %w", vm, err)
		}
	}
	return fault.WithHint(n.Wait(ctx, id, fmt.Sprintf("VM %d stopped", vm.ID), n.Timing.Stop, func(ctx context.Context) (bool, string, error) {
		vm, err := n.Proxmox.VMState(ctx, vm.ID)
		return err == nil && !vm.Running, "still running", err
	}), "see what VM %d is doing in Proxmox, switch it off, then run the same command again", vm.ID)
}

// stop keeps a rebooting host and Proxmox HA from starting the VM again, asks the guest to shut
// down, then pulls the plug. It waits for the VM, not for the task.
func (n *node) stop(ctx context.Context) error {
	r, err := n.record.read(ctx)
	if err != nil {
		return err
	}
	var vm cluster.VM
	err = n.Repeat(ctx, "take-down/stop", n.RepeatFor("take-down/stop"), func(ctx context.Context) error {
		vm, err = r.KeepOff(ctx)
		return err
	})
	if err != nil {
		return rolling.Final(n.keepServing(ctx, r, err))
	}
	if vm.Running {
		if err := n.switchOff(ctx, r, "take-down/stop", vm, n.etcd.leaveAgain); err != nil {
			return err
		}
	}
	if !n.etcd.leaves() {
		return nil
	}
	return n.etcd.staysOut(ctx, vm, "take-down/stop", n.etcd.left)
}

func (n *node) stopped(ctx context.Context) (string, error) {
	var vm cluster.VM
	var ha *cluster.HAResource
	var errHA error
	err := wait.All(
		func() (err error) {
			vm, err = n.Proxmox.VM(ctx, n.Plan.VMID)
			return err
		},
		func() error {
			ha, errHA = n.Proxmox.HAResource(ctx, n.Plan.VMID)
			return nil
		},
	)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return fmt.Sprintf("VM %d is deleted", n.Plan.VMID), nil
	case err != nil:
		return "", fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	case vm.Running || vm.HA || vm.Config["onboot"] == "1":
		return "", nil
	}
	if errHA != nil || ha != nil {
		return "", fault.Prefix("read what Proxmox HA has of "+vm.String(), errHA)
	}
	return fmt.Sprintf("VM %d is stopped", vm.ID), nil
}

// stoppedFor is the goal of stop: the VM is off, and etcd does not need a node that leaves it.
func (n *node) stoppedFor(ctx context.Context) (string, error) {
	reason, err := n.stopped(ctx)
	if err != nil || reason == "" || !n.etcd.leaves() {
		return reason, err
	}
	if left, err := n.etcd.left(ctx); err != nil || left == "" {
		return "", err
	}
	return reason, nil
}

func (n *node) start(ctx context.Context) error {
	var vm cluster.VM
	var others exchange.Others
	var r *exchange.Replace
	var errOthers, errRecord error
	err := wait.All(
		func() (err error) {
			vm, err = n.Proxmox.VM(ctx, n.Plan.VMID)
			return err
		},
		func() error {
			others, errOthers = exchange.ReadOthers(ctx, n.Proxmox, n.Plan.VMID)
			return nil
		},
		func() error {
			r, errRecord = n.record.read(ctx)
			return nil
		},
	)
	switch {
	case err != nil:
		return fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	case vm.UUID() != n.Plan.UUID || n.Plan.Strategy.From() != cluster.Halfway && vm.MadeBy() != n.Run:
		return fault.VMChanged.Refusedf("%s is not the one that run %s created", vm, n.Run)
	case vm.Running:
		return fault.VMChanged.Refusedf("%s is on, but its emulator says %q", vm, vm.QMP)
	}
	if err := errors.Join(errOthers, errRecord); err != nil {
		return err
	}
	if err := others.RequireAlone(ctx, n.Proxmox, vm); err != nil {
		return err
	}
	if !n.Plan.Strategy.Installs() { // the system that it boots already has the name
		if err := n.RequireNameFree(ctx); err != nil {
			return err
		}
	}
	err = r.Sending(ctx, exchange.SentStart, exchange.LateQueue, func(ctx context.Context) error { return n.Proxmox.Start(ctx, vm) })
	return n.withUndoHint(fault.Prefix("start "+vm.String(), err))
}

func (n *node) started(ctx context.Context) (string, error) {
	vm, err := n.Proxmox.VMState(ctx, n.Plan.VMID)
	if err != nil {
		return "", fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	// Proxmox reports "running" also for a VM whose emulator hangs.
	if !vm.Running || vm.QMP != "running" {
		return "", nil
	}
	return vm.String() + " runs", nil
}

func (n *node) stopStep(stopped goal) step.Step {
	title := fmt.Sprintf("stop VM %d", n.Plan.VMID)
	return step.Step{ID: "stop", Title: title, Risk: step.Disruptive, Skip: stopped, Do: n.stop}
}

func (n *node) startStep() step.Step {
	title := fmt.Sprintf("start VM %d", n.Plan.VMID)
	return step.Step{ID: "start", Code: fault.NoBoot, Title: title, Skip: n.started, Do: n.start}
}
