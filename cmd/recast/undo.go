package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

func newUndoCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	var last string
	c := &cobra.Command{
		Use: "undo [NODE...]", Short: "Undo the last roll, or cancel an unfinished one",
		Long: `Undo what the last run did to a node: if its replacement is unfinished, cancel it and
put the old system disk back (recast recover does only that); if it is finished, boot
the system disk that it had before (recast rollback does only that). The plan says
which of the two it is, and asks. No disk is freed by either, so undo can be undone.

Without NODE it is about the unfinished node, or else about the nodes of the last run
that replaced a system disk: it says first which run that is. --run names another. With
--yes and without a terminal, name the nodes or the run.

As in a roll, the plan names data that only the present system disk has, and without
acceptLoss it is refused. Upgrades in place replace no system disk: there the way back
is a roll to the previous lock (git checkout COMMIT -- recast.yaml recast.lock
schematics/), which is also what keeps the next roll from going forward again.`,
		Example: `  recast undo wk1
  recast undo                  # what the last roll did
  recast undo --run 3f2a --yes # recast history lists the runs`,
		ValidArgsFunction: g.completeNodes,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && last != "":
				return errUsage{errors.New("arguments name nodes, --run names a run with all its nodes: choose one")}
			case len(args) == 0 && last == "" && f.yes && s.unasked() != "":
				return errUsage{fault.WithHint(errors.New("recast undo --yes without a terminal needs the names of nodes, or --run with the ID of a run: nobody sees which run it would be"),
					"recast history lists the runs, recast status what is unfinished")}
			}
			f.policy.Only = args
			f.again = func(plan planning.Plan) (nodes []string) {
				for _, n := range plan.Work() {
					nodes = append(nodes, n.Node)
				}
				return nodes
			}
			return f.withRun(c, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				o.UndoRun = last
				return pipeline.Undo(ctx, p, m, run, o)
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&last, "run", "", "undo the run with this `ID`, or a part of it")
	acceptOutage(c, &f.policy)
	return c
}

func newRecoverCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	c := &cobra.Command{
		Use: "recover NODE", Short: "Cancel an unfinished replacement: put the old system disk back",
		Long: `What recast undo does for a node whose replacement is unfinished, and nothing else: stop
the new VM, park its new system disk, give every disk back, including the old system
disk, and boot from that. It needs neither the machine configuration nor the journal of
the interrupted roll, so it works from any machine. Afterwards the node is as stale as
before, and the next roll plans it again.

If the node ran pods already, data may exist only on the new system disk. As in a
roll, the plan names that data, and without acceptLoss it is refused. The new disk
stays parked and is marked as cancelled: recast prune frees it, or the end of the
node's next recreate or reimage. A VM that was being reshaped gets its old settings
back, and a removal is cancelled.`,
		Example: `  recast status                # which node is unfinished?
  recast recover wk1`,
		Hidden: true, // recast undo is for people; recast says recover where it must be nothing else
		Args:   cobra.ExactArgs(1), ValidArgsFunction: g.completeNodes,
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
		Long: `What recast undo does for nodes whose last roll is finished, and nothing else: exchange
their system disk for the one that was parked in that roll, and park the current one.

This works only while the old system still fits: its machine configuration and
Kubernetes version are unchanged, and, for a control plane, etcd's minor version is
unchanged and the old disk holds no etcd data because the member had left. Otherwise
the way back is a roll to the previous lock. The refusal says what does not fit.

In any case, restore the previous lock with its recast.yaml and schematics
(git checkout COMMIT -- recast.yaml recast.lock schematics/): by the current lock the
nodes are stale, and the next roll would bring them forward again.`,
		Example: `  recast rollback wk1
  recast rollback --all --yes  # every node that has a parked system disk`,
		Hidden: true, ValidArgsFunction: g.completeNodes,
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
	acceptOutage(c, &f.policy)
	return c
}

func acceptOutage(c *cobra.Command, p *planning.Policy) {
	c.Flags().BoolVar(&p.AcceptOutage, "accept-outage", false, "with two control planes: accept that etcd and the Kubernetes API are down during the rollback")
}
