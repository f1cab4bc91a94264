package serving

import (
	"context"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/gate"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// VM is the VM of a node that serves.
type VM struct {
	*rolling.Node
	Gate gate.Gate
}

// Steps change what is planned of it, before anything else is done to the node.
func (n VM) Steps() []step.Step {
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
func (n VM) Reshape() step.Step {
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
func (n VM) Running() shape.Running {
	return shape.Running{
		Proxmox: n.Proxmox, VMID: n.Plan.VMID, Shape: n.Want.Shape,
		Machine: func(ctx context.Context) (cluster.Machine, error) { return n.Talos.Machine(ctx, n.Plan.Addr) },
	}
}

// Finished says whether nothing of the plan is left to change; what recast does not change does not count.
func (n VM) Finished(ctx context.Context) (bool, error) {
	vm, ds, err := n.Running().Now(ctx)
	for _, w := range []shape.When{shape.Live, shape.Off} {
		if to := n.Plan.VM.Moves(w); to != "" && vm.Host != to {
			return false, err
		}
	}
	return err == nil && len(ds) == len(ds.At(shape.Never)), err
}
