package roll

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// rememberLost returns what is remembered of a control plane whose cluster is broken: its VM. Neither its machine
// nor Kubernetes needs to answer.
func rememberLost(ctx context.Context, n *rolling.Node) (parking.Memory, error) {
	vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
	if err != nil {
		return parking.Memory{}, fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	if vm.UUID() != n.Plan.UUID || vm.Host != n.Plan.Host {
		return parking.Memory{}, fault.WithHint(fault.PlanMoved.Refusedf("%s is no longer as it was when the plan was made", vm), "run the same command again, which looks again")
	}
	mem := parking.Memory{VM: vm, DiskSerial: exchange.DiskSerial(n.Run, n.Plan.Node), ControlPlane: true, EtcdKept: true}
	if mem.HA, err = n.Proxmox.HAResource(ctx, vm.ID); err != nil {
		return parking.Memory{}, fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
	}
	if mem.VM.Pool, err = n.Proxmox.Pool(ctx, vm.ID); err != nil {
		return parking.Memory{}, err
	}
	if system, err := cluster.ParseDisk(n.Want.SystemDisk, vm.Config[n.Want.SystemDisk]); err == nil && system.Owner == vm.ID {
		mem.SystemKey = system.Key
		mem.Old = parking.KeptDisk{Run: n.Run, Slot: system.Key, Options: cluster.OptionString(system)}
	}
	return mem, nil
}

// forgetGone deletes the Node that a restored Kubernetes still has of a control plane that is about to be
// recreated. It refuses unless the machine of that Node is gone.
func forgetGone(n *rolling.Node) step.Step {
	return rolling.DeleteNode(n, "delete the old Node "+n.Plan.Node,
		func(ctx context.Context, k cluster.KubeNode) error { return requireGone(ctx, n, k) },
		func(k cluster.KubeNode) bool { return n.Plan.UUID != "" && k.UUID == n.Plan.UUID })
}

// requireGone refuses if a VM has the UUID of a Node, or its machine answers.
func requireGone(ctx context.Context, n *rolling.Node, k cluster.KubeNode) error {
	vms, err := n.Proxmox.VMs(ctx)
	if err != nil {
		return fmt.Errorf("look for the VM of node %s: %w", k.Name, err)
	}
	for _, vm := range vms {
		if vm.UUID() == k.UUID {
			return fault.WithHint(fault.PlanMoved.Refusedf("%s is the VM of node %s, which was to be made again", vm, k.Name), "run the same command again, which looks again")
		}
	}
	for _, addr := range k.Addresses {
		if who, err := answers(ctx, n, addr); err != nil || who.UUID != "" && strings.EqualFold(who.UUID, k.UUID) {
			return errors.Join(err, fault.WithHint(fault.UUIDMismatch.Refusedf("the machine of the old Node %s answers at %s, and no VM has its UUID %s", k.Name, addr, k.UUID), "switch it off, then run the same command again"))
		}
	}
	return nil
}
