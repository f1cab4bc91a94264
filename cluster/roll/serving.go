package roll

import (
	"context"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// serving is the VM of a node that serves.
type serving struct {
	*rolling.Node
}

// Steps change what is planned of it, before anything else is done to the node.
func (n serving) Steps() []step.Step {
	var steps []step.Step
	changes := len(n.Plan.VM.At(shape.Live))
	if to := n.Plan.VM.Moves(shape.Live); to != "" {
		steps, changes = append(steps, n.migrate(to)), changes-1
	}
	if changes > 0 {
		steps = append(steps, n.Reshape())
	}
	return steps
}

// Reshape puts right what differs of a VM that runs.
func (n serving) Reshape() step.Step {
	const id = "reshape-live"
	return step.Step{
		ID: id, Title: "change of the VM what needs no stop", Risk: step.Disruptive,
		Skip: func(ctx context.Context) (string, error) {
			if lacks, err := n.Running().Lacks(ctx); err != nil || lacks != "" {
				return "", err
			}
			return "the VM is as wanted, and the node sees its disks", nil
		},
		Do: func(ctx context.Context) error {
			if err := n.Running().Apply(ctx, func(text string) { n.Tell(id, text) }); err != nil {
				return err
			}
			err := n.Wait(ctx, id, n.Plan.Node+" sees its VM as it is now", n.Timing.Try, func(ctx context.Context) (bool, string, error) {
				lacks, err := n.Running().Lacks(ctx)
				return err == nil && lacks == "", lacks, err
			})
			return fault.WithHint(err, "what was changed of VM %d stays; talosctl -n %s get disks shows what the node sees", n.Plan.VMID, n.Plan.Addr)
		},
	}
}

// Running is what reads and changes it.
func (n serving) Running() shape.Running {
	return shape.Running{
		Proxmox: n.Proxmox, VMID: n.Plan.VMID, Shape: n.Want.Shape,
		Machine: func(ctx context.Context) (cluster.Machine, error) {
			return cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
		},
	}
}

// Finished says whether nothing of the plan is left to change; what recast does not change does not count.
func (n serving) Finished(ctx context.Context) (bool, error) {
	vm, ds, err := n.Running().Now(ctx)
	for _, w := range []shape.When{shape.Live, shape.Off} {
		if to := n.Plan.VM.Moves(w); to != "" && vm.Host != to {
			return false, err
		}
	}
	return err == nil && len(ds) == len(ds.At(shape.Never)), err
}

const migrateStep = "migrate"

// migrate moves the VM to another host while it runs. A request that Proxmox carries out late needs no
// record: it copies no disk, and every step of an exchange sees that the VM is on another host.
func (n serving) migrate(to string) step.Step {
	return step.Step{
		ID: migrateStep, Title: fmt.Sprintf("migrate VM %d to %s while it runs", n.Plan.VMID, to), Risk: step.Disruptive,
		Skip: func(ctx context.Context) (string, error) {
			vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
			if err != nil || vm.Host != to || vm.Lock != "" {
				return "", fault.Prefix(fmt.Sprintf("look up VM %d", n.Plan.VMID), err)
			}
			if lacks, err := n.lacks(ctx, vm, ""); err != nil || lacks != "" {
				return "", nil //nolint:nilerr // the step waits, and says for what
			}
			return fmt.Sprintf("VM %d runs on %s", vm.ID, to), nil
		},
		Do: func(ctx context.Context) error { return n.moveTo(ctx, to) },
	}
}

// moveTo migrates the VM, and waits until the same boot of the same machine serves from there.
func (n serving) moveTo(ctx context.Context, to string) error {
	m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	vm, err := n.migratable(ctx, to)
	if err != nil {
		return err
	}
	if vm.Host != to {
		n.Tell(migrateStep, fmt.Sprintf("Proxmox migrates it from %s to %s", vm.Host, to))
		if err := n.Proxmox.Migrate(ctx, vm, to); err != nil {
			return fault.WithHint(fmt.Errorf("migrate %s to %s: %w", vm, to, err),
				"nothing else was done to %s; without nodes[].host it stays where it is", n.Plan.Node)
		}
	}
	return n.Wait(ctx, migrateStep, fmt.Sprintf("%s serves from %s", n.Plan.Node, to), n.Timing.Join, func(ctx context.Context) (bool, string, error) {
		vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
		if err != nil || vm.Host != to || vm.Lock != "" {
			return false, strings.TrimSuffix(fmt.Sprintf("%s, locked (%s)", vm, vm.Lock), ", locked ()"), err
		}
		lacks, err := n.lacks(ctx, vm, m.BootID)
		return err == nil && lacks == "", lacks, err
	})
}

// migratable asks again, right before the migration, whether it is possible.
func (n serving) migratable(ctx context.Context, to string) (cluster.VM, error) {
	if err := n.RequireUnchanged(ctx); err != nil {
		return cluster.VM{}, err
	}
	vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
	if err != nil || vm.Host == to {
		return vm, fault.Prefix(fmt.Sprintf("look up VM %d", n.Plan.VMID), err)
	}
	if vm.Lock != "" {
		return vm, fault.VMLocked.Refusedf("%s is locked (%s)", vm, vm.Lock)
	}
	if err := cluster.RequireQuorum(ctx, n.Proxmox); err != nil {
		return vm, err
	}
	return vm, shape.RequireMigratable(ctx, n.Proxmox, vm, to, shape.Live)
}

// lacks says why the node does not serve from where its VM is; boot is the one that it must still be in,
// "" if any will do.
func (n serving) lacks(ctx context.Context, vm cluster.VM, boot string) (string, error) {
	switch {
	case vm.UUID() != n.Plan.UUID:
		return "", wait.Stop(fault.UUIDMismatch.Refusedf("%s has UUID %s: it is not the VM that was planned (UUID %s)", vm, vm.UUID(), n.Plan.UUID))
	case !vm.Running || vm.QMP != "running":
		return vm.String() + " does not run", nil
	}
	m, lacks, err := n.Arrived(ctx)
	switch {
	case err != nil || lacks != "":
		return lacks, err
	case boot != "" && m.BootID != boot:
		return "", wait.Stop(fmt.Errorf("%s was restarted while it was migrated", n.Plan.Node))
	}
	return cluster.LacksNode(ctx, n.Kube, n.Plan.Node, n.Plan.UUID, m.BootID)
}
