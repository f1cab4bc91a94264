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
		Use: "recover NODE", Short: "Give an unfinished replacement up: put the old system disk back",
		Long: `Put everything back as it was before the unfinished replacement of a node began:
stop the new VM, park its new system disk, give every disk back, the old system
disk too, and boot that. It needs neither the machine configuration nor the
journal of the interrupted roll, so it works from any machine. The node is as
stale as before then, and the next roll plans it anew.

Data that only the new system disk has, because the node took pods already, is
asked for as in a roll: the plan names it, and without acceptLoss it is refused. The
new disk stays parked, as one that was given up: recast prune frees it, or the end
of the node's next recreate or reimage.

recast roll finishes a replacement instead; recast status says what is unfinished.
A replacement that is finished is undone by recast rollback.`,
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
		Use: "rollback {NODE... | --all}", Short: "Boot nodes from the system disk that they had before",
		Long: `Exchange the system disk of nodes for the one that is parked since their last
roll, and keep the present one parked. Data that only the present one has is asked
for as in a roll: the plan names it, and without acceptLoss it is refused.

That is possible only while the old system still fits: its machine configuration
and Kubernetes version are unchanged, and, for a control plane, etcd's minor
version too and its old disk holds no data of etcd because it had left.
Otherwise the way back is a roll to the previous lock. The refusal says what does
not fit.

Put the previous lock back in any case, with the recast.yaml and the schematics that
it is of (git checkout COMMIT -- recast.yaml recast.lock schematics/): by the present
one the nodes are stale, and the next roll would bring them forward again. A second
rollback does, too. A lock alone is refused where recast.yaml names another version,
and recast lock would undo it.`,
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
	c.Flags().BoolVar(&f.policy.AcceptOutage, "accept-outage", false, "with two control planes: accept that etcd and the Kubernetes API are down meanwhile")
	return c
}
