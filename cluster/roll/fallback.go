package roll

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// fallback reimages a node that did not come back from its upgrade, and then fails: the node serves
// again, but not with the wanted build.
func (n *inPlace) fallback() step.Step {
	return step.Step{
		ID: "fallback", Title: "install the build that it had on a blank system disk", Risk: step.Destructive,
		Skip: func(context.Context) (string, error) {
			if n.gaveUp == nil {
				return "it came back", nil
			}
			return "", nil
		},
		Steps: func(context.Context) ([]step.Step, error) {
			f := n.roller.node(*n.AsReimage())
			reimage := f.recreate()
			return []step.Step{
				{ID: "gate", Title: "check that it can be reimaged", Do: f.gate.Check},
				{ID: "remember", Title: "open the record of the reimage", Skip: f.remembered, Do: func(ctx context.Context) error {
					mem, err := f.Memory(ctx)
					if err != nil {
						return err
					}
					return f.record.open(ctx, mem)
				}},
				{ID: "stop", Title: fmt.Sprintf("stop VM %d", n.Plan.VMID), Risk: step.Disruptive, Skip: f.stopped, Do: f.stop},
				f.record.source().Park(),
				reimage[len(reimage)-1], // bring-up
				{ID: "report", Title: "note that the build does not boot here", Do: func(ctx context.Context) error {
					if err := n.Kube.SetFailedBuild(ctx, n.Plan.Node, n.Want.Build.ID); err != nil {
						return fmt.Errorf("mark node %s: %w", n.Plan.Node, err)
					}
					return fault.WithHint(fault.UpgradeStuck.Errorf("%w; it was reimaged and runs build %s again", n.gaveUp, words.Short(f.Want.Build.ID)),
						"the disk with the system that does not boot is parked: recast status shows it")
				}},
			}, nil
		},
	}
}

// rememberForReimage saves what a reimage would need, while the machine can still be asked.
func (n *inPlace) rememberForReimage(ctx context.Context) error {
	kubernetes, err := n.config.runsKubernetes(ctx)
	if err != nil {
		return err
	}
	sum, err := n.config.remember(ctx, kubernetes)
	if err != nil {
		return err
	}
	if err := n.rememberStuck(ctx); err != nil || n.Plan.Previous == nil {
		return err
	}
	mem, err := n.roller.node(*n.AsReimage()).recall(ctx)
	if err != nil {
		return err
	}
	mem.ConfigSum = sum
	if err := n.Journal.Put(n.Key("memory"), mem); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}
