package roll

import (
	"context"
	"errors"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

func (n *node) kept(ctx context.Context) (string, error) {
	park, err := n.Parking(ctx)
	if err != nil || park.Record.Open {
		return "", err
	}
	return park.KeptBy(n.Plan.Strategy), nil
}

// givesBack gives the node back what was taken away from it.
func (n *node) givesBack() []step.Step {
	return []step.Step{
		{ID: "restore-node", Title: "restore labels and taints", Do: n.restoreMetadata},
		rolling.NoteEntry(n.Node),
		{ID: "uncordon", Title: "uncordon " + n.Plan.Node, Skip: n.uncordoned, Do: n.uncordon},
	}
}

// frees lists the steps that free what is superseded once the record is closed.
func (n *node) frees() []step.Step {
	steps := rolling.Freeing{Node: n.Node}.Steps("bring-up/finish")
	if n.Want.Surge { // what an earlier removal of it has left
		steps = append(steps, rolling.Freeing{Node: n.Node}.Removed())
	}
	return steps
}

func (n *node) uncordon(ctx context.Context) error {
	if err := errors.Join(n.gate.RequireOwnName(ctx), n.record.noteStage(ctx, parking.StageServes)); err != nil {
		return err
	}
	return fault.Prefix("uncordon "+n.Plan.Node, n.Kube.Uncordon(ctx, n.Plan.Node))
}

// uncordoned holds once our mark is removed: a cordon by someone else stays.
func (n *node) uncordoned(ctx context.Context) (string, error) {
	k, err := n.KubeNode(ctx)
	switch {
	case err != nil:
		return "", err
	case k.Mark != nil:
		return "", nil
	case k.Unschedulable:
		return "it was cordoned before recast came", nil
	}
	return "it takes pods", nil
}

// restoreMetadata restores the metadata that users had set, if the Node is a new object: a person
// or a cloud controller deleted the old one, and the kubelet registered again. On the same object,
// every later change was intentional and stays.
func (n *node) restoreMetadata(ctx context.Context) error {
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	k, err := n.KubeNode(ctx)
	if err != nil {
		return err
	}
	if !mem.LostMetadata(k) {
		return nil
	}
	return fault.Prefix("restore metadata of node "+n.Plan.Node, n.Kube.RestoreMetadata(ctx, n.Plan.Node, mem.Metadata))
}

// removal ends the removal of a node whose VM is deleted: Kubernetes forgets it, and its disks stay
// parked.
func (n *node) removal() []step.Step {
	keep := step.Step{ID: "keep", Title: "keep its disks parked", Skip: n.kept, Do: func(ctx context.Context) error {
		r, err := n.record.read(ctx)
		if err != nil {
			return err
		}
		return r.KeepAll(ctx, n.Want.Surge)
	}}
	if n.Plan.Rebuild != "" { // Kubernetes does not answer
		return []step.Step{keep}
	}
	own := func(ctx context.Context, _ cluster.KubeNode) error { return n.gate.RequireOwnName(ctx) }
	steps := []step.Step{rolling.DeleteNode(n.Node, "delete Node "+n.Plan.Node, own, nil), keep}
	if n.Want.Surge {
		steps = append(steps, rolling.Freeing{Node: n.Node}.Removed())
	}
	return steps
}

// removed is the goal of the removal.
func (n *node) removed(ctx context.Context) (string, error) {
	if n.Plan.Found.Absent != nil { // only its disk was left
		return rolling.Freeing{Node: n.Node}.Done(ctx)
	}
	if !n.Out.Has(n.Plan.Node) { // its steps are to look
		return "", nil
	}
	if reason, err := n.kept(ctx); err != nil || reason == "" {
		return "", err
	}
	n.Out.Remove(n.Plan.Node)
	return "it is removed", nil
}
