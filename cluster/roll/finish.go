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

// frees lists the steps that free what is superseded once the record is closed.
func (n *node) frees() []step.Step {
	steps := n.FreeSteps("bring-up/finish")
	if n.Want.Surge { // what an earlier removal of the node has left
		steps = append(steps, n.FreeRemoved())
	}
	return steps
}

func (n *node) uncordon(ctx context.Context) error {
	if err := errors.Join(n.RequireOwnName(ctx), n.record.noteStage(ctx, parking.StageServes)); err != nil {
		return err
	}
	return fault.Prefix("uncordon "+n.Plan.Node, n.Kube.Uncordon(ctx, n.Plan.Node))
}

// uncordoned is the goal of uncordon: our mark is removed. A cordon by someone else stays.
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

// removed is the goal of the removal.
func (n *node) removed(ctx context.Context) (string, error) {
	if n.Plan.Found.Absent != nil { // only its disk was left
		return n.RemovedFreed(ctx)
	}
	if !n.Out.Has(n.Plan.Node) { // its steps check that
		return "", nil
	}
	if reason, err := n.kept(ctx); err != nil || reason == "" {
		return "", err
	}
	n.Out.Remove(n.Plan.Node)
	return "it is removed", nil
}

func (n *node) uncordonStep(uncordon func(context.Context) error) step.Step {
	return step.Step{ID: "uncordon", Title: "uncordon " + n.Plan.Node, Skip: n.uncordoned, Do: uncordon}
}

// deleteNodeStep deletes the Node of a node whose VM is deleted.
func (n *node) deleteNodeStep() step.Step {
	own := func(ctx context.Context, _ cluster.KubeNode) error { return n.RequireOwnName(ctx) }
	return rolling.DeleteNode(n.Node, "delete Node "+n.Plan.Node, own, nil)
}

// keepDisks keeps the disks of a removed node parked.
func (n *node) keepDisks(ctx context.Context) error {
	r, err := n.record.read(ctx)
	if err != nil {
		return err
	}
	return r.KeepAll(ctx, n.Want.Surge)
}
