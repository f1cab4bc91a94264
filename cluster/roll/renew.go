package roll

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// stillOn adds what Proxmox says about the VM to the error of a machine that does not answer. A VM
// that is off stays off: onboot is unset, so its host does not start it when it boots, and neither
// does Proxmox HA.
func (n *node) stillOn(ctx context.Context, err error) error {
	if err == nil || n.Plan.Strategy.KeepsVM() || ctx.Err() != nil {
		return err
	}
	vm, errVM := n.Proxmox.VMState(ctx, n.Plan.VMID)
	switch {
	case errVM != nil:
		return errors.Join(err, errVM)
	case !vm.Running:
		return wait.Stop(fault.WithHint(fmt.Errorf("%s is off: %s went down meanwhile, or someone stopped it", vm, vm.Host),
			"run the same command again: it starts the VM and continues"))
	}
	return err
}

// cutOff says whether the machine may hang because an earlier process of this run was interrupted
// during the installation, for example by a power failure of the host: a boot ISO that finds Talos
// on a disk halts (talos.halt_if_installed). It also requires that the disk holds nothing else: the
// node still has our mark, or has never joined if it is new, and etcd has no member of it.
func (n *node) cutOff(ctx context.Context, r *exchange.Replace, mem parking.Memory) bool {
	isNew := n.Plan.Strategy.From() == cluster.Nowhere
	if !n.Plan.Resume || n.renewed || n.Plan.Prepared != "" || !n.installs() || isNew && (n.Plan.Bootstraps || n.Plan.Rebuild != "") {
		return false
	}
	vm, found, err := r.Powered(ctx)
	if err != nil || !found || !vm.Running || vm.UUID() != n.Plan.UUID || vm.MadeBy() != n.Run || !r.IsBlank(vm) {
		return false
	}
	switch k, err := n.Kube.Node(ctx, n.Plan.Node); {
	case isNew && !errors.Is(err, cluster.ErrNotFound):
		return false // it has joined
	case !isNew && (err != nil || k.Ready || !k.HeldBy(n.Run) || k.BootID != mem.BootID):
		return false // it is Ready, is no longer ours, or its kubelet has reported a new boot: it was installed
	}
	if !mem.ControlPlane || mem.EtcdKept && !isNew {
		return true
	}
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd(), n.Plan.Node)
	if err != nil {
		return false
	}
	_, member, err := v.Member(n.Plan.Node)
	return err == nil && !member
}

// renew replaces the blank system disk that this replacement made with another one, and starts the
// VM again.
func (n *node) renew(ctx context.Context, r *exchange.Replace, silent error) error {
	n.renewed = true
	n.Tell("bring-up/configure", fmt.Sprintf("%v; if its installation was cut off it halts, so it gets another blank system disk", silent))
	vm, _, err := r.Powered(ctx)
	if err != nil {
		return err
	}
	if err := r.Sending(ctx, cluster.SentStop, exchange.LateQueue, func(ctx context.Context) error { return n.Proxmox.Stop(ctx, vm) }); err != nil {
		return fmt.Errorf("stop %s: %w", vm, err)
	}
	if err := r.ParkNew(ctx); err != nil {
		return err
	}
	if err := r.GiveSystem(ctx); err != nil {
		return err
	}
	return n.start(ctx)
}
