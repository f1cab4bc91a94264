package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// stillOn adds to the error of a machine that does not answer what Proxmox says
// of its VM. One that is off stays so: a host that went down does not start it,
// since onboot is unset, and neither does Proxmox HA.
func (n *nodeRoll) stillOn(ctx context.Context, err error) error {
	if err == nil || n.plan.Strategy == InPlace || ctx.Err() != nil {
		return err
	}
	vm, errVM := n.Proxmox.VMState(ctx, n.plan.VMID)
	switch {
	case errVM != nil:
		return errors.Join(err, errVM)
	case !vm.Running:
		return wait.Stop(fault.WithHint(fmt.Errorf("%s is off: %s went down meanwhile, or somebody stopped it", vm, vm.Host),
			"run the same command again: it starts the VM and goes on"))
	}
	return err
}

// cutOff says whether the machine may hang because an installation of an earlier
// process of ours was cut off, by a power failure of its host, say: a boot ISO
// that finds Talos on a disk halts (talos.halt_if_installed). Nothing but that is
// on the disk: the node has not been given back, and etcd has no member of it.
func (n *nodeRoll) cutOff(ctx context.Context, r *Replace, mem memory) bool {
	if !n.plan.Resume || n.renewed || n.plan.Strategy != Recreate && n.plan.Strategy != Reimage {
		return false
	}
	vm, found, err := r.powered(ctx)
	if err != nil || !found || !vm.Running || vm.UUID() != n.plan.UUID || vm.MadeBy() != n.Run || !r.isBlank(vm) {
		return false
	}
	if k, err := n.kubeNode(ctx); err != nil || k.Ready || !k.heldBy(n.Run) || k.BootID != mem.BootID {
		return false // it runs, or a kubelet has been heard of since: it was installed, whoever does not reach it
	}
	if !mem.ControlPlane || mem.EtcdKept {
		return true
	}
	v, err := ViewEtcd(ctx, n.Talos, n.askEtcd(), n.plan.Node)
	if err != nil {
		return false
	}
	_, member, err := v.member(n.plan.Node)
	return err == nil && !member
}

// renew gives the VM another blank system disk for the one that this replacement
// has made, and starts it again.
func (n *nodeRoll) renew(ctx context.Context, r *Replace, silent error) error {
	n.renewed = true
	n.say("bring-up/configure", fmt.Sprintf("%v; if its installation was cut off it halts, so it gets another blank system disk", silent))
	vm, _, err := r.powered(ctx)
	if err != nil {
		return err
	}
	if err := r.sending(ctx, sentStop, LateQueue, func(ctx context.Context) error { return n.Proxmox.Stop(ctx, vm) }); err != nil {
		return fmt.Errorf("stop %s: %w", vm, err)
	}
	if err := r.parkNew(ctx); err != nil {
		return err
	}
	if err := r.blank(ctx); err != nil {
		return err
	}
	return n.start(ctx)
}

// withDisk adds, after the first step of bringing a VM up, what it takes where an
// earlier process was killed while it renewed the system disk.
func (n *nodeRoll) withDisk(steps []step.Step) []step.Step {
	if n.plan.Strategy != Recreate && n.plan.Strategy != Reimage {
		return steps
	}
	renew := step.Step{ID: "renew-disk", Title: "see that it has a system disk", Risk: step.Disruptive, Skip: n.hasDisk, Do: n.giveDisk}
	return slices.Insert(steps, 1, renew)
}

func (n *nodeRoll) hasDisk(ctx context.Context) (string, error) {
	r, err := n.knownReplace(ctx)
	if err != nil {
		return "", err
	}
	vm, disk, there, err := r.systemNow(r.current(ctx))
	if err != nil || !there {
		return "", err
	}
	return fmt.Sprintf("%s of %s is %s", disk.Key, vm, disk.Volid), nil
}

func (n *nodeRoll) giveDisk(ctx context.Context) error {
	r, err := n.replace(ctx)
	if err != nil {
		return err
	}
	return r.blank(ctx)
}
