package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newRollCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	c := &cobra.Command{
		Use: "roll", Short: "Bring every stale node to the lock",
		Long: `Check the lock, build and publish what is missing, show the plan, ask, and then
bring one stale node after the other to the lock, by the first strategy that is
possible: recreate (drain, stop, park its disks, delete the VM, create it again
from the new boot ISO, give the persistent disks back), reimage (the same VM with
a blank system disk) or in-place (an upgrade as talosctl does it). Control planes
go one at a time and only while etcd survives it; a snapshot of etcd is saved
first. The old system disk stays parked: see recast rollback. Where recast.yaml
asks for one strategy and that is impossible, nothing is touched.

Conditions of your own, roll.gates in recast.yaml, are asked before each node goes
and once it is back. One that does not hold within its timeout ends the roll there;
the next one asks it again.

A roll that was interrupted is finished first, whatever --only says: run the same
command again, here or on another machine; recast status explains what is half
done. Only one run per cluster is possible at a time. A machine that was reset and
is in maintenance mode is given its configuration back before anything else, if
talos.machineConfigs has it.
The first Ctrl-C finishes the nodes that are out and starts no other; the second
stops at once.`,
		Example: `  recast roll
  recast roll --only wk1
  recast roll --yes -o json    # in CI`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.withRun(c, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				var cl closers
				defer cl.close()
				images, err := connectImages(s, p, &cl)
				if err != nil {
					return pipeline.Report{}, err
				}
				return pipeline.Roll(ctx, p, images, m, run, o)
			})
		},
	}
	selection(c, &f.policy)
	f.add(c)
	c.Flags().BoolVar(&f.policy.AcceptOutage, "accept-outage", false, "with two control planes: accept that etcd and the Kubernetes API are down meanwhile")
	return c
}

// rollFlags are what every command that changes nodes takes.
type rollFlags struct {
	policy cluster.Policy
	yes    bool
	out    string
}

func (f *rollFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask; needed where there is no terminal")
	c.Flags().StringVarP(&f.out, "output", "o", "text", "`format` of the report: text or json")
}

// withRun runs a command that changes nodes, and prints its report.
func (f *rollFlags) withRun(c *cobra.Command, s *streams, g *globals,
	do func(context.Context, pipeline.Project, pipeline.Machines, *step.Runner, pipeline.RollOptions) (pipeline.Report, error),
) error {
	if err := format(f.out, "text", "json"); err != nil {
		return err
	}
	return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
		var cl closers
		defer cl.close()
		progress := ui.NewProgress(s.err)
		run := &step.Runner{Emit: progress.Emit}
		rep, err := do(ctx, p, m, run, pipeline.RollOptions{
			Policy: f.policy, Holder: holder(), Dead: dead,
			Confirm: func(plan cluster.Plan) (bool, error) {
				if err := ui.WritePlan(s.err, "text", plan); err != nil {
					return false, err
				}
				ok, err := confirm(ctx, s, question{
					command: strings.Join(append([]string{c.CommandPath()}, c.Flags().Args()...), " "),
					text:    "Change these nodes?", untouched: "nothing was changed on the nodes",
				}, f.yes)
				if ok {
					// From here on a node may be out: the first Ctrl-C lets it be finished.
					cl.add(s.interrupts.onFirst(run.Stop, "the node that is out is finished first"))
				}
				return ok, err
			},
		})
		if rep.Run != "" || err == nil {
			return errors.Join(err, ui.WriteReport(s.out, f.out, rep, progress.Fared()))
		}
		return err
	})
}
