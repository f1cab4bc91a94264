package roll

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

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

// cameBack holds unless the node is to be reimaged.
func (n *inPlace) cameBack(context.Context) (string, error) {
	if n.gaveUp == nil {
		return "it came back", nil
	}
	return "", nil
}

// openRemembered opens the record of a reimage from what was remembered before the upgrade.
func (n *node) openRemembered(ctx context.Context) error {
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	return n.record.open(ctx, mem)
}

// report fails a node that was reimaged.
func (n *inPlace) report(ctx context.Context) error {
	if err := n.Kube.SetFailedBuild(ctx, n.Plan.Node, n.Want.Build.ID); err != nil {
		return fmt.Errorf("mark node %s: %w", n.Plan.Node, err)
	}
	return fault.WithHint(fault.UpgradeStuck.Errorf("%w; it was reimaged and runs build %s again", n.gaveUp, words.Short(n.Plan.Previous.ID)),
		"the disk with the system that does not boot is parked: recast status shows it")
}
