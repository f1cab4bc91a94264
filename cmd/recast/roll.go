package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newRollCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	var file string
	var rehearse, begun bool
	c := &cobra.Command{
		Use: "roll [NODE...]", Short: "Bring every stale node to the lock",
		Long: `Check the lock, build and publish what is missing, show the plan, ask, and then
bring one stale node after the other to the lock, by the first strategy that is
possible: recreate (drain, stop, park its disks, delete the VM, create it again
from the new boot ISO, give the persistent disks back), reimage (the same VM with
a blank system disk) or in-place (an upgrade as talosctl does it). Control planes are
replaced one at a time and only while etcd survives it; an etcd snapshot is saved
first. The old system disk stays parked: see recast undo. If recast.yaml asks for
a certain strategy and that is impossible, nothing is touched.

With --rehearse, a scratch VM on each Proxmox host, one for each kind of firmware,
boots what the nodes will to maintenance mode before the first one, is checked, and is
deleted. If that fails, no node was touched. With roll.surge, workers that have
surge: true serve while others are out.

Your conditions (roll.gates in recast.yaml) are checked before each node is taken down
and after it is back; your programs (roll.hooks) run before and after the run, each
batch of nodes and each node. If one fails, the roll ends there. Your webhooks (notify)
are notified of start, failure and end.

With --plan, a plan that was saved with recast plan -o json is carried out: these
nodes, by these strategies, in this order, and nothing else. The plan is made again,
and refused if something changed: recast.yaml or recast.lock, a VM, or the state of a
node. What a run of the same plan has done already does not count as a change: run the
same command again to continue where it stopped.

An interrupted roll is finished first, whatever nodes are named: run the same command
again, here or on another machine. Only one run per cluster is possible at a time. A
machine that was reset first gets its configuration back from talos.machineConfigs.

The first Ctrl-C finishes the nodes that are in progress and starts no other; the
second one stops at once.`,
		Example: `  recast roll
  recast roll wk1
  recast roll --plan plan.json # from recast plan -o json
  recast roll --plan plan.json --continue # on another machine, after a run of it was killed
  recast roll --rehearse
  recast roll --yes -o json    # in CI`,
		ValidArgsFunction: g.completeNodes,
		RunE: func(c *cobra.Command, args []string) error {
			if err := named(&f.policy, args); err != nil {
				return err
			}
			saved, err := savedPlan(c, file)
			if err != nil {
				return err
			}
			f.saved = saved
			if begun && saved == nil {
				return errUsage{errors.New("--continue goes on with a saved plan: name it with --plan")}
			}
			return f.withRun(c, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				var cl closers
				defer cl.close()
				images, err := connectImages(s, p, &cl)
				if err != nil {
					return pipeline.Report{}, err
				}
				if c.Flags().Changed("rehearse") {
					o.Rehearse = &rehearse
				}
				o.Begun = begun
				return pipeline.Roll(ctx, p, images, m, run, o)
			})
		},
	}
	selection(c, g, &f.policy)
	f.add(c)
	c.Flags().StringVar(&file, "plan", "", "carry out exactly the plan in this `file`")
	c.Flags().BoolVar(&begun, "continue", false, "a run of --plan has begun, elsewhere or without its journal: nodes that are done already are no change")
	c.Flags().BoolVar(&rehearse, "rehearse", false, "test what the nodes will boot on scratch VMs first (default: roll.rehearse.enabled)")
	return c
}

// savedPlan reads the plan that --plan names; nil without it.
func savedPlan(c *cobra.Command, file string) (*planning.Plan, error) {
	if !c.Flags().Changed("plan") {
		return nil, nil
	}
	if c.Flags().NArg() > 0 {
		return nil, errUsage{errors.New("arguments name nodes for a new plan, --plan names a saved plan: choose one")}
	}
	for _, name := range []string{"only", "exclude", "selector", "what", "accept-outage"} {
		if c.Flags().Changed(name) {
			return nil, errUsage{fmt.Errorf("--%s selects nodes for a new plan, --plan names a saved plan: choose one", name)}
		}
	}
	plan, err := pipeline.ReadPlan(file)
	if err != nil {
		return nil, errOpening{err}
	}
	return plan, nil
}

// rollFlags are the flags of every command that changes nodes.
type rollFlags struct {
	policy planning.Policy
	saved  *planning.Plan
	asks   string // the question; "": Change these nodes? One that is given is asked once, and again for a plan that takes VMs away
	// again are the arguments with which the command means the plan's nodes; nil: those that were typed.
	again func(planning.Plan) []string
	yes   bool
	out   string
}

func (f *rollFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask; needed where there is no terminal")
	outputFlag(c, &f.out, "text", "json")
}

// withRun runs a command that changes nodes, and prints its report.
func (f *rollFlags) withRun(c *cobra.Command, s *streams, g *globals,
	do func(context.Context, pipeline.Project, pipeline.Machines, *step.Runner, pipeline.RollOptions) (pipeline.Report, error),
) error {
	return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
		var cl closers
		defer cl.close()
		display := s.displaySteps(ctx)
		run := &step.Runner{Emit: display.Emit}
		s.telemetry.Watch(run)
		tell, err := notifier(s, p, &cl)
		if err != nil {
			return err
		}
		var unnamed []string // recast undo --yes without a node or a run is refused
		if f.again != nil {
			unnamed = []string{"NODE"}
		}
		asked := false // and may go on
		rep, err := do(ctx, p, m, run, pipeline.RollOptions{
			Policy: f.policy, Saved: f.saved, Holder: holder.This(), Dead: holder.Dead, Suspended: holder.Suspended, Notify: tell, Began: shareRuns(ctx, s, p, &cl),
			MayAsk: s.mayAskUnless(f.yes, c, unnamed...),
			Pulsed: s.telemetry.Pulsed, Origin: origin(ctx, p.Config.Dir),
			Confirm: func(plan planning.Plan) (bool, error) {
				if s.interrupts.forget() { // pressed while an earlier run was being finished
					return false, nil
				}
				defer display.hold()()
				if err := ui.WritePlan(s.err, "text", plan); err != nil {
					return false, err
				}
				var more []string
				if unnamed != nil {
					more = f.again(plan)
				}
				ok, err := confirm(ctx, s, question{
					command: typed(c, more...),
					text:    cmp.Or(f.asks, "Change these nodes?"), untouched: "nothing was changed on the nodes",
				}, f.yes || asked && !planning.TakesAway(plan))
				if ok {
					asked = f.asks != ""
					display.plan(plan)
					// From here on a node may be in progress: the first Ctrl-C finishes it.
					cl.add(s.interrupts.onFirst(display.stops(run), "the node in progress is finished first"))
				}
				return ok, err
			},
		})
		display.end()
		s.telemetry.Rolled(rep, display.Fared())
		rep.Pages = savePages(s, p, rep)
		if rep.Run != "" || err == nil {
			return errors.Join(err, answered(ui.WriteReport(s.out, f.out, rep, display.Fared())))
		}
		return err
	})
}
