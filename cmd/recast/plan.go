package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

// selection are the flags that choose nodes.
func selection(c *cobra.Command, p *cluster.Policy) {
	c.Flags().StringSliceVar(&p.Only, "only", nil, "`nodes` to look at (default: all)")
	c.Flags().StringSliceVar(&p.Exclude, "exclude", nil, "`nodes` to leave out")
	c.Flags().VarP(labels{&p.Labels}, "selector", "l", "look only at nodes whose Kubernetes `labels` match, as kubectl -l does: zone=a,tier!=db,gpu in (a,b)")
	c.Flags().BoolVar(&p.AcceptOutage, "accept-outage", false, "with two control planes: accept that etcd and the Kubernetes API are down meanwhile")
}

// labels is the flag that chooses nodes by their labels.
type labels struct{ chosen *cluster.Selector }

func (l labels) Type() string   { return "labels" }
func (l labels) String() string { return "" }

func (l labels) Set(text string) (err error) {
	*l.chosen, err = kube.ParseSelector(text)
	return err
}

func newPlanCmd(s *streams, g *globals) *cobra.Command {
	var policy cluster.Policy
	var out string
	var exitCode, rehearse bool
	c := &cobra.Command{
		Use: "plan", Short: "Show what a roll would do, and why",
		Long: `Compare every node with the lock and show what a roll would do, in its order:
which nodes are stale and why, by which strategy each is brought up to date and
why by that one, which disks are carried over, what would be lost, how long it
takes, or why it can't be done; and which gates of your own (roll.gates) it asks
between two nodes. It does not ask them: recast doctor does. Changes nothing.
What the plan shows is what a roll runs; recast roll --plan carries out one that was
saved with -o json. -o markdown is for a pull request. A node with the annotation
recast.dev/pause is left as it is.

Where boot ISOs are tried out before any node goes (roll.rehearse, --rehearse), it
shows on which hosts and how; and which scratch VMs of killed runs go before that.`,
		Example: `  recast plan
  recast plan --only wk1 -o json
  recast plan -l zone=a
  recast plan -o json > plan.json
  recast plan --exit-code      # 2 if a roll would do something`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := format(out, "text", "json", "markdown"); err != nil {
				return err
			}
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				var tried *bool
				if c.Flags().Changed("rehearse") {
					tried = &rehearse
				}
				plan, err := pipeline.Plan(ctx, p, m, policy, tried)
				if err != nil {
					return err
				}
				s.telemetry.Planned(plan)
				if err := ui.WritePlan(s.out, out, plan); err != nil {
					return err
				}
				if exitCode && len(plan.Work()) > 0 {
					return errDiffers
				}
				return nil
			})
		},
	}
	selection(c, &policy)
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit 2 if a roll would do something")
	c.Flags().BoolVar(&rehearse, "rehearse", false, "show what recast roll --rehearse does (default: roll.rehearse.enabled)")
	c.Flags().StringVarP(&out, "output", "o", "text", "text, json or markdown")
	return c
}
