package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

func newRecoverCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	c := &cobra.Command{
		Use: "recover NODE", Short: "Cancel an unfinished replacement: put the old system disk back",
		Long: `Restore the state from before the unfinished replacement of a node: stop the new VM,
park its new system disk, give every disk back, including the old system disk, and
boot from that. It needs neither the machine configuration nor the journal of the
interrupted roll, so it works from any machine. Afterwards the node is as stale as
before, and the next roll plans it again.

If the node ran pods already, data may exist only on the new system disk. As in a
roll, the plan names that data, and without acceptLoss it is refused. The new disk
stays parked and is marked as cancelled: recast prune frees it, or the end of the
node's next recreate or reimage.

It gives a VM that was being reshaped its old settings back, and cancels a removal. For
a node that is being made it says how to give that up.

recast roll finishes the replacement instead; recast status shows what is unfinished.
recast rollback undoes a finished replacement.`,
		Example: `  recast status                # which node is unfinished?
  recast recover wk1`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.withRun(c, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				return pipeline.Recover(ctx, p, m, run, o, args[0])
			})
		},
	}
	f.add(c)
	return c
}

func newRollbackCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	var all bool
	c := &cobra.Command{
		Use: "rollback {NODE... | --all}", Short: "Boot nodes from their previous system disk",
		Long: `Exchange the system disk of nodes for the one that was parked in their last roll, and
park the current one. As in a roll, the plan names data that only the current disk
has, and without acceptLoss it is refused.

This works only while the old system still fits: its machine configuration and
Kubernetes version are unchanged, and, for a control plane, etcd's minor version is
unchanged and the old disk holds no etcd data because the member had left. Otherwise
the way back is a roll to the previous lock. The refusal says what does not fit.

In any case, restore the previous lock with its recast.yaml and schematics
(git checkout COMMIT -- recast.yaml recast.lock schematics/): by the current lock the
nodes are stale, and the next roll would bring them forward again. So does a second
rollback. Restoring only the lock is refused if recast.yaml names another version, and
recast lock would undo it.`,
		Example: `  recast rollback wk1
  recast rollback --all --yes  # every node that has a parked system disk`,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && !all:
				return errUsage{errors.New("recast rollback takes the names of nodes, or --all for every node that has a parked system disk")}
			case len(args) > 0 && all:
				return errUsage{errors.New("recast rollback takes the names of nodes or --all, not both")}
			}
			f.policy.Only = args
			return f.withRun(c, s, g, pipeline.Rollback)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&all, "all", false, "every node that has a parked system disk")
	c.Flags().BoolVar(&f.policy.AcceptOutage, "accept-outage", false, "with two control planes: accept that etcd and the Kubernetes API are down during the rollback")
	return c
}
