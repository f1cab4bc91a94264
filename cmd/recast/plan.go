package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

// selection adds the flags that choose nodes.
func selection(c *cobra.Command, g *globals, p *planning.Policy) {
	c.Flags().StringSliceVar(&p.Only, "only", nil, "`nodes` to look at (default: all)")
	c.Flags().StringSliceVar(&p.Exclude, "exclude", nil, "`nodes` to leave out")
	for _, flag := range []string{"only", "exclude"} {
		_ = c.RegisterFlagCompletionFunc(flag, g.completeNodes)
	}
	c.Flags().VarP(labels{&p.Labels}, "selector", "l", "look only at nodes whose Kubernetes `labels` match, as kubectl -l does: zone=a,tier!=db,gpu in (a,b)")
	c.Flags().Var(parts{&p.What}, "what", "`parts` of the nodes to look at: image, config, vm (default: all)")
	c.Flags().BoolVar(&p.AcceptOutage, "accept-outage", false, "with two control planes: accept that etcd and the Kubernetes API are down during the roll")
}

// named adds nodes that are arguments: recast roll wk1 is recast roll --only wk1.
func named(p *planning.Policy, nodes []string) error {
	if len(nodes) > 0 && len(p.Only) > 0 {
		return errUsage{errors.New("name nodes as arguments or with --only, not both")}
	}
	p.Only = append(p.Only, nodes...)
	return nil
}

// labels is the flag that chooses nodes by labels.
type labels struct{ chosen *cluster.Selector }

func (l labels) Type() string   { return "labels" }
func (l labels) String() string { return l.chosen.Text }

func (l labels) Set(text string) (err error) {
	*l.chosen, err = kube.ParseSelector(text)
	return err
}

// parts is the flag that chooses what of a node is rolled.
type parts struct{ chosen *[]planning.What }

func (p parts) Type() string { return "parts" }

func (p parts) String() string {
	var names []string
	for _, what := range *p.chosen {
		names = append(names, string(what))
	}
	return strings.Join(names, ",")
}

func (p parts) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		what := planning.What(part)
		if what != planning.Image && what != planning.Config && what != planning.VM {
			return fmt.Errorf("%q is none of image, config and vm", part)
		}
		*p.chosen = append(*p.chosen, what)
	}
	return nil
}

func newPlanCmd(s *streams, g *globals) *cobra.Command {
	var policy planning.Policy
	var out, explain string
	var exitCode, rehearse bool
	c := &cobra.Command{
		Use: "plan [NODE...]", Short: "Show what a roll would do, and why",
		Long: `Compare every node with the lock and show what a roll would do, in order: which nodes
are stale and why, which strategy each gets and why, which disks are carried over,
what would be lost, how long it takes, or why it can't be done; and which of your gates
(roll.gates) it would check between two nodes. The plan itself does not check them:
recast doctor does. Changes nothing.

What the plan shows is what a roll runs. recast roll --plan carries out a plan that was
saved with -o json (docs/schemas/plan.schema.json). -o markdown is for a pull request.
-o prometheus uses the names of --metrics-file. A node with the annotation
recast.dev/pause is left alone.

--explain NODE shows one node in detail: what is wanted and what was found, each
strategy with the reasons against it, what happens to each of its disks, and each step
of a roll in order, with its duration in earlier rolls.

It shows what scratch VMs prove before the first node; if a rehearsal comes then, too
(roll.rehearse, --rehearse), on which hosts one boots what; and which scratch VMs of killed
runs are removed first.`,
		Example: `  recast plan
  recast plan --explain wk1
  recast plan wk1 -o json
  recast plan -l zone=a
  recast plan -o json > plan.json
  recast plan --exit-code      # 2 if a roll would do something`,
		ValidArgsFunction: g.completeNodes,
		RunE: func(c *cobra.Command, args []string) error {
			if explain != "" && out != "text" && out != "json" {
				return errUsage{errors.New("--explain has the output formats text and json")}
			}
			if err := named(&policy, args); err != nil {
				return err
			}
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				var tried *bool
				if c.Flags().Changed("rehearse") {
					tried = &rehearse
				}
				ask := planAsk{out: out, node: explain, policy: policy, rehearse: tried, exitCode: exitCode}
				code, err := ask.answer(ctx, s, p, m)
				if err == nil && code == exitDiffers {
					return errDiffers
				}
				return err
			})
		},
	}
	selection(c, g, &policy)
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit 2 if a roll would do something")
	c.Flags().StringVar(&explain, "explain", "", "show one `node` in detail instead: strategies, disks, steps")
	c.Flags().BoolVar(&rehearse, "rehearse", false, "show what recast roll --rehearse does (default: roll.rehearse.enabled)")
	outputFlag(c, &out, "text", "json", "markdown", "prometheus")
	return c
}

// planAsk holds the options of recast plan.
type planAsk struct {
	out      string
	node     string // to explain; "": none
	policy   planning.Policy
	rehearse *bool
	exitCode bool
}

// answer makes the plan and prints it, or the details of one node. It returns the exit
// code.
func (a planAsk) answer(ctx context.Context, s *streams, p pipeline.Project, m pipeline.Machines) (code int, err error) {
	var plan planning.Plan
	var e survey.Explanation
	if a.node == "" {
		plan, err = pipeline.Plan(ctx, p, m, a.policy, a.rehearse)
	} else {
		plan, e, err = pipeline.Explain(ctx, p, m, a.policy, a.rehearse, a.node)
	}
	if err != nil {
		return exitFailed, err
	}
	if a.exitCode && len(plan.Work()) > 0 {
		code = exitDiffers
	}
	s.telemetry.Planned(plan)
	switch {
	case a.node != "":
		err = ui.WriteExplanation(s.out, a.out, e)
	case a.out == "prometheus":
		err = s.telemetry.WriteMetrics(s.out, code)
	case a.out == "text":
		err = errors.Join(ui.WritePlan(s.out, a.out, plan), ui.AdvisePlan(s.out, plan))
	default:
		err = ui.WritePlan(s.out, a.out, plan)
	}
	return code, err
}
