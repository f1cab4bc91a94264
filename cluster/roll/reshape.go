package roll

import (
	"context"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// live puts right what can be while the VM runs, before anything else is done to the node.
func (n reshape) live() []step.Step {
	if len(n.Plan.VM.At(shape.Live)) == 0 {
		return nil
	}
	return []step.Step{n.whileUp()}
}

// whileUp puts right what differs of a VM that runs.
func (n reshape) whileUp() step.Step {
	const id = "reshape-live"
	return step.Step{
		ID: id, Title: "change of the VM what needs no stop", Risk: step.Disruptive,
		Skip: func(ctx context.Context) (string, error) {
			if lacks, err := n.running().Lacks(ctx); err != nil || lacks != "" {
				return "", err
			}
			return "the VM is as wanted, and the node sees its disks", nil
		},
		Do: func(ctx context.Context) error {
			if err := n.running().Apply(ctx, func(text string) { n.Tell(id, text) }); err != nil {
				return err
			}
			err := n.Wait(ctx, id, n.Plan.Node+" sees its VM as it is now", n.Timing.Try, func(ctx context.Context) (bool, string, error) {
				lacks, err := n.running().Lacks(ctx)
				return err == nil && lacks == "", lacks, err
			})
			return fault.WithHint(err, "what was changed of VM %d stays; talosctl -n %s get disks shows what the node sees", n.Plan.VMID, n.Plan.Addr)
		},
	}
}

func (n reshape) running() shape.Running {
	return shape.Running{
		Proxmox: n.Proxmox, VMID: n.Plan.VMID, Shape: n.Want.Shape,
		Machine: func(ctx context.Context) (cluster.Machine, error) { return n.Talos.Machine(ctx, n.Plan.Addr) },
	}
}

func (n reshape) stops() bool { return len(n.Plan.VM.At(shape.Off)) > 0 }

// orBack adds the way back to the error of a node that does not come up with its new VM.
func (n reshape) orBack(err error) error {
	if n.Plan.Strategy != cluster.Reconfigure {
		return err
	}
	return fault.WithHint(err, "recast recover %s gives VM %d its old settings back; or correct recast.yaml, and recast roll goes on with that", n.Plan.Node, n.Plan.VMID)
}

// after gives a node that has got its image or configuration, and is still drained, its VM in the same
// outage.
func (n reshape) after() []step.Step {
	if !n.stops() {
		return nil
	}
	as := *n.Node
	as.Plan.Strategy, as.Plan.EtcdKept = cluster.Reconfigure, true
	of := n.roller.node(as)
	of.record.drawn = n.record.drawn
	return of.order.recreate()
}

// drained leaves out of a node's last steps the one that ends its outage, if its VM is still to be
// stopped.
func (n reshape) drained(steps []step.Step) []step.Step {
	return slices.DeleteFunc(steps, func(s step.Step) bool { return n.stops() && s.ID == "uncordon" })
}

// finished is the goal of a node that only gets another VM. What a newer recast.yaml wants of it is
// planned again after it was resumed.
func (n reshape) finished(ctx context.Context) (string, error) {
	ended := n.Out.Has(n.Plan.Node) // false before its steps
	_, ds, err := n.running().Now(ctx)
	reason := ""
	if err == nil && (n.Plan.Resume || len(ds) == len(ds.At(shape.Never))) {
		reason, err = n.finish.uncordoned(ctx)
	}
	switch {
	case err != nil && !ended:
		return "", nil //nolint:nilerr // its steps say what is wrong
	case err != nil || reason == "":
		return "", err
	}
	n.Out.Remove(n.Plan.Node)
	return "its VM is as wanted", nil
}
