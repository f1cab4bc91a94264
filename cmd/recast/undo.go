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
	var u undoFlags
	c := &cobra.Command{
		Use: "undo [NODE...]", Short: "Undo the last roll, or cancel an unfinished one",
		Long: `Undo what the last run did to a node: if its replacement is unfinished, cancel it and
put the old system disk back; if it is finished, boot the system disk that it had before.
The plan says which of the two it is, and asks. No disk is freed by either, so undo can be
undone.

Without NODE it is about the unfinished node, or else about the nodes of the last run
that replaced a system disk: it says first which run that is. --run names another. With
--yes and without a terminal, name the nodes or the run.

NODE --cancel does only the first: stop the new VM, park its new system disk, give every
disk back, and boot from the old system disk. It needs neither the machine configuration
nor the journal of the interrupted roll, so it works from any machine. Afterwards the node
is as stale as before. The new disk stays parked and is marked as cancelled: recast prune
frees it, or the end of the node's next recreate or reimage. A VM that was being reshaped
gets its old settings back, and a removal is cancelled.

--previous does only the second, for nodes, or with --all for every node that has a parked
system disk: exchange the system disk for the one that was parked, and park the current
one. This works only while the old system still fits: its machine configuration and
Kubernetes version are unchanged, and, for a control plane, etcd's minor version is
unchanged and the old disk holds no etcd data because the member had left. The refusal
says what does not fit.

As in a roll, the plan names data that only the present system disk has, and without
acceptLoss it is refused. Upgrades in place replace no system disk: there the way back
is a roll to the previous lock (git checkout COMMIT -- recast.yaml recast.lock
schematics/), which is also what keeps the next roll from going forward again.`,
		Example: `  recast undo wk1
  recast undo                  # what the last roll did
  recast undo --run 3f2a --yes # recast history lists the runs
  recast undo wk1 --cancel     # never more than an unfinished replacement
  recast undo --previous --all`,
		ValidArgsFunction: g.completeNodes,
		RunE: func(c *cobra.Command, args []string) error {
			if err := u.check(args, f.yes && s.unasked() != ""); err != nil {
				return err
			}
			f.policy.Only = args
			if u.unnamed(args) {
				f.again = func(plan planning.Plan) (nodes []string) {
					for _, n := range plan.Work() {
						nodes = append(nodes, n.Node)
					}
					return nodes
				}
			}
			return f.withRun(c, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				o.Undo = planning.Undone{Way: u.way(), Run: u.run}
				return pipeline.Undo(ctx, p, m, run, o)
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&u.run, "run", "", "undo the run with this `ID`, or a part of it")
	c.Flags().BoolVar(&u.cancel, "cancel", false, "only cancel the unfinished replacement of NODE")
	c.Flags().BoolVar(&u.previous, "previous", false, "only boot the system disks that finished replacements have parked")
	c.Flags().BoolVar(&u.all, "all", false, "with --previous: every node that has a parked system disk")
	c.Flags().BoolVar(&f.policy.AcceptOutage, "accept-outage", false, "with two control planes: accept that etcd and the Kubernetes API are down during the rollback")
	return c
}

// undoFlags select what is undone.
type undoFlags struct {
	run                   string
	cancel, previous, all bool
}

// unnamed says that only the plan shows which nodes are meant.
func (u undoFlags) unnamed(nodes []string) bool { return len(nodes) == 0 && u.run == "" && !u.all }

func (u undoFlags) way() planning.Way {
	switch {
	case u.cancel:
		return planning.Cancel
	case u.previous:
		return planning.Previous
	}
	return ""
}

// check refuses flags and arguments that do not fit together. blind: --yes, and nobody sees the plan.
func (u undoFlags) check(nodes []string, blind bool) error {
	wrong := func(why, hint string) error { return fault.WithHint(errUsage{errors.New(why)}, "%s", hint) }
	const cancel, previous = "recast undo NODE --cancel", "recast undo NODE... --previous, or recast undo --previous --all"
	switch {
	case u.cancel && u.previous:
		return wrong("--cancel is about an unfinished replacement, --previous about a finished one: choose one, or leave both out", "recast undo NODE does what applies")
	case u.cancel && u.run != "":
		return wrong("--cancel takes the name of a node, and --run names a run: choose one", cancel)
	case u.cancel && u.all, u.cancel && len(nodes) != 1:
		return wrong("--cancel takes the name of one node", cancel)
	case u.previous && u.run != "":
		return wrong("--previous takes the names of nodes, and --run names a run: choose one", previous)
	case u.previous && u.all && len(nodes) > 0:
		return wrong("--previous takes the names of nodes or --all: choose one", previous)
	case u.previous && !u.all && len(nodes) == 0:
		return wrong("--previous takes the names of nodes, or --all", previous)
	case u.all && !u.previous:
		return wrong("--all means every node that has a parked system disk, and needs --previous", "recast undo --previous --all")
	case len(nodes) > 0 && u.run != "":
		return wrong("arguments name nodes, --run names a run with all its nodes: choose one", "recast undo NODE..., or recast undo --run ID")
	case u.unnamed(nodes) && blind:
		return wrong("recast undo --yes without a terminal needs the names of nodes, or --run with the ID of a run: nobody sees which run it would be",
			"recast history lists the runs, recast status what is unfinished")
	}
	return nil
}
