package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newRemoveCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	var free string
	c := &cobra.Command{
		Use: "remove NODE", Short: "Take a node away; its disks stay parked",
		Long: `Take a node away for good: gates, drain, leave etcd, stop, park all its disks, delete
its VM, delete its Node. This is the only way by which recast lets a node go: a line
that is gone from recast.yaml changes nothing. Take the line out afterwards.

All its disks stay on its parking VM: recast status lists them, and recast prune leaves
them alone. recast remove NODE --free NODE frees them, once the node is gone or was made
again: that can't be undone. Of a node with surge: true only the system disk exists,
and that is freed at once, unless it has data that only it has.

The last control plane is refused. Of three, remove two to come to one: with two, etcd
survives the loss of neither. A removal that was interrupted goes on with the same
command, or with recast roll; recast undo NODE cancels it.`,
		Example: `  recast remove wk3
  recast status                        # its disks
  recast remove wk3 --free wk3         # gone for good`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case !c.Flags().Changed("free"):
			case free != args[0]:
				return errUsage{errors.New("--free takes the node's name once more: its disks are deleted for good")}
			default:
				return freeRemoved(c, s, g, f, free)
			}
			return f.withRun(c, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				return pipeline.Remove(ctx, p, m, run, o, args[0])
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&free, "free", "", "free the disks of a node that was removed: its `name` once more")
	return c
}

// freeRemoved frees the disks of a node that was removed.
func freeRemoved(c *cobra.Command, s *streams, g *globals, f rollFlags, node string) error {
	p, err := g.open()
	if err != nil {
		return err
	}
	return runPrune(c, s, p, pipeline.PruneOptions{Removed: node, Holder: holder.This(), Dead: holder.Dead, Suspended: holder.Suspended}, f.yes, f.out)
}

// runPrune removes what the options say, and prints what became of it.
func runPrune(c *cobra.Command, s *streams, p pipeline.Project, o pipeline.PruneOptions, yes bool, out string) error {
	var cl closers
	defer cl.close()
	px, err := connectProxmox(s, p, &cl)
	if err != nil {
		return err
	}
	if o.Only == pipeline.PruneMirror {
		if o.Mirror, err = connectRegistry(s, p, &cl); err != nil {
			return err
		}
	}
	ctx := c.Context()
	display := s.displaySteps(ctx)
	run := &step.Runner{Emit: display.Emit}
	s.telemetry.Watch(run)
	o.MayAsk = s.mayAskUnless(yes, c)
	o.Confirm = func(rep pipeline.PruneReport) (bool, error) {
		defer display.hold()()
		return confirmPrune(ctx, s, typed(c), rep, yes)
	}
	rep, err := pipeline.Prune(ctx, p, px, px, run, o)
	display.end()
	if err != nil && !removedAny(rep) {
		return err
	}
	return errors.Join(err, answered(ui.WritePrune(s.out, out, rep)))
}
