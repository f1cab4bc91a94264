package roll

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
)

// leaveAsReplacement makes a replacement that has joined etcd leave it again. If the replacement does not answer,
// the old system replaces its member by name when it joins.
func (n *node) leaveAsReplacement(ctx context.Context, r *exchange.Replace) error {
	if out, err := n.replacementOut(ctx, r); err != nil || out != "" {
		return err
	}
	if _, err := cluster.ReadIdentity(ctx, n.Talos, n.Plan.Addr); err != nil {
		n.Tell("put-back/leave-etcd", "the replacement does not answer; its member goes when the old system joins")
		return nil
	}
	return rolling.Repeatable(errors.Join(
		fault.Prefix("make the replacement hand etcd's leadership over", n.Talos.EtcdForfeit(ctx, n.Plan.Addr, n.Plan.UUID)),
		fault.Prefix("make the replacement leave etcd", n.Talos.EtcdLeave(ctx, n.Plan.Addr, n.Plan.UUID)),
	))
}

// replacementOut is the goal of leaveAsReplacement: the replacement is no member, or it is off and
// etcd is healthy without it. The old system then replaces that member by name when it joins. With
// the old disk in the VM, a member with another ID is the old system itself, which has rejoined.
func (n *node) replacementOut(ctx context.Context, r *exchange.Replace) (string, error) {
	mem, err := n.Memory(ctx)
	if err != nil {
		return "", err
	}
	if !mem.ControlPlane || mem.EtcdKept || mem.EtcdMembers < 2 {
		return "etcd continues with what the disks hold", nil
	}
	vm, found, err := r.Powered(ctx)
	if err != nil {
		return "", err
	}
	if !found || !r.IsBlank(vm) {
		return fmt.Sprintf("VM %d does not have the new system disk", r.VM.ID), nil
	}
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd(), n.Plan.Node)
	if err != nil && !vm.Running {
		err = fault.WithHint(err, "if it was a member, etcd waits for its vote: start %s in Proxmox and wait until etcd is healthy, then run the same command again", vm)
	}
	if err != nil {
		return "", err
	}
	m, found, err := v.Member(n.Plan.Node)
	switch {
	case err != nil:
		return "", err
	case !found || m.ID == mem.EtcdID:
		return "the replacement is no member of etcd", nil
	case !vm.Running && len(v.Unhealthy(n.Plan.Node)) == 0:
		return "the replacement is off, and etcd continues without it", nil
	}
	return "", nil
}

// standsStill says whether the VM may be left as it is. A VM that still runs its old system but has left etcd must be
// restarted: machined does not start etcd again within the same boot (Talos' EtcdLeaveCluster stops the service).
func (n *node) standsStill(ctx context.Context, r *exchange.Replace) (string, error) {
	reason, err := r.StandsStill(ctx)
	if err != nil || reason == "" {
		return "", err
	}
	if out, err := n.replacementOut(ctx, r); err != nil || out == "" {
		return "", err
	}
	park, err := n.Parking(ctx)
	if err != nil || !park.Record.Left {
		return reason, err
	}
	if m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr); err == nil && n.IsOldBoot(ctx, m) {
		return "", nil
	}
	return reason, nil // off, or in a later boot
}

func (n *node) stopReplacement(ctx context.Context, r *exchange.Replace) error {
	vm, found, err := r.Powered(ctx)
	if err != nil || !found {
		return err
	}
	if vm.HA {
		if err := r.Sending(ctx, cluster.SentRemoveHA, exchange.LateQueue, func(ctx context.Context) error { return n.Proxmox.RemoveHA(ctx, vm.ID) }); err != nil {
			return fmt.Errorf("take %s out of Proxmox HA: %w", vm, err)
		}
		if vm, found, err = r.Powered(ctx); err != nil || !found { // without HA, another task carries out a shutdown
			return err
		}
	}
	const id = "put-back/stop" // it may have been reset after it left etcd, and have rejoined
	if vm.Running {
		if err := n.switchOff(ctx, r, id, vm, func(ctx context.Context) error { return n.leaveAsReplacement(ctx, r) }); err != nil {
			return err
		}
	}
	return n.etcd.staysOut(ctx, vm, id, func(ctx context.Context) (string, error) { return n.replacementOut(ctx, r) })
}
