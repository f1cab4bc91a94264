package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/spf13/cobra"
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
			return f.withImages(c, s, g, func(ctx context.Context, p pipeline.Project, images pipeline.Images, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
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

type rollFlags struct {
	policy planning.Policy
	saved  *planning.Plan
	asks   string // the question; "": Change these nodes? A question given here is asked once, and again for a plan that takes VMs away
	// again returns the arguments with which the command names the plan's nodes; nil: the arguments as typed.
	again func(planning.Plan) []string
	yes   bool
	out   string
}

func (f *rollFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask; needed where there is no terminal")
	outputFlag(c, &f.out, "text", "json")
}

// withImages is withRun for a command that also makes images.
func (f *rollFlags) withImages(c *cobra.Command, s *streams, g *globals,
	do func(context.Context, pipeline.Project, pipeline.Images, pipeline.Machines, *step.Runner, pipeline.RollOptions) (pipeline.Report, error),
) error {
	return f.withRun(c, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
		var cl closers
		defer cl.close()
		images, err := connectImages(s, p, &cl)
		if err != nil {
			return pipeline.Report{}, err
		}
		return do(ctx, p, images, m, run, o)
	})
}

// withRun runs a command that changes nodes, and prints its report.
func (f *rollFlags) withRun(c *cobra.Command, s *streams, g *globals,
	do func(context.Context, pipeline.Project, pipeline.Machines, *step.Runner, pipeline.RollOptions) (pipeline.Report, error),
) error {
	return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
		var cl closers
		defer cl.close()
		display, run := s.runner(ctx)
		tell, err := notifier(s, p, &cl)
		if err != nil {
			return err
		}
		var unnamed []string // recast undo --yes without a node or a run is refused
		if f.again != nil {
			unnamed = []string{"NODE"}
		}
		asked := false // the question in asks was answered with yes
		rep, err := do(ctx, p, m, run, pipeline.RollOptions{
			Policy: f.policy, Saved: f.saved, Holder: holder.This(), Dead: holder.Dead, Suspended: holder.Suspended, Notify: tell, Began: shareRuns(ctx, s, p, &cl),
			MayAsk: s.mayAskUnless(f.yes, c, unnamed...),
			Pulsed: s.telemetry.Pulsed, Origin: origin(ctx, p.Config.Dir),
			Confirm: func(plan planning.Plan) (bool, error) {
				if s.interrupts.forget() { // Ctrl-C was pressed while an earlier run was being finished
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

type labels struct{ chosen *cluster.Selector }

func (l labels) Type() string   { return "labels" }
func (l labels) String() string { return l.chosen.Text }

func (l labels) Set(text string) (err error) {
	*l.chosen, err = kube.ParseSelector(text)
	return err
}

// parts is the flag that chooses which parts of a node are rolled.
type parts struct{ chosen *[]planning.What }

func (p parts) Type() string { return "parts" }

func (p parts) String() string {
	names := cluster.Each(*p.chosen, func(what planning.What) string { return string(what) })
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
	var a planAsk
	var rehearse bool
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
			if a.node != "" && a.out != "text" && a.out != "json" {
				return errUsage{errors.New("--explain has the output formats text and json")}
			}
			if err := named(&a.policy, args); err != nil {
				return err
			}
			if c.Flags().Changed("rehearse") {
				a.rehearse = &rehearse
			}
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				return a.answer(ctx, s, p, m)
			})
		},
	}
	selection(c, g, &a.policy)
	c.Flags().BoolVar(&a.exitCode, "exit-code", false, "exit 2 if a roll would do something")
	c.Flags().StringVar(&a.node, "explain", "", "show one `node` in detail instead: strategies, disks, steps")
	c.Flags().BoolVar(&rehearse, "rehearse", false, "show what recast roll --rehearse does (default: roll.rehearse.enabled)")
	outputFlag(c, &a.out, "text", "json", "markdown", "prometheus")
	return c
}

type planAsk struct {
	out      string
	node     string // to explain; "": none
	policy   planning.Policy
	rehearse *bool
	exitCode bool
}

func (a planAsk) answer(ctx context.Context, s *streams, p pipeline.Project, m pipeline.Machines) (err error) {
	var plan planning.Plan
	var e survey.Explanation
	if a.node == "" {
		plan, err = pipeline.Plan(ctx, p, m, a.policy, a.rehearse)
	} else {
		plan, e, err = pipeline.Explain(ctx, p, m, a.policy, a.rehearse, a.node)
	}
	if err != nil {
		return err
	}
	code, outcome := exitDone, error(nil)
	if a.exitCode && len(plan.Work()) > 0 {
		code, outcome = exitDiffers, errDiffers
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
	return cmp.Or(err, outcome)
}

func newDriftCmd(s *streams, g *globals) *cobra.Command {
	var out, explain string
	var deep bool
	var what []planning.What
	c := &cobra.Command{
		Use: "drift", Short: "Check that every node runs exactly the lock",
		Long: `Compare every node with the lock: Talos version, architecture, platform, Secure
Boot, schematic with its lock hash, extensions, install image, an upgrade that waits
for a reboot, boot media and order, Kubernetes version, leftovers of an unfinished
roll. Changes nothing; suitable for a nightly job. Exits 0 if all nodes are in sync,
2 on drift, and 1 if a node could not be read, whatever the others show. A talosconfig
with the role os:reader is enough, except to read the machine configuration and to see an
upgrade that waits for a reboot. Where talos.machineConfigs has configurations, a node
that runs another one is stale; --what image leaves that out.

It also shows what a roll has set of storage systems while nodes are away, by which run,
and what gives it back. If no run is active, that is drift, too.

Without --deep it compares what images say about themselves. With --deep it reads every
file of every locked extension back from each node and compares it with the image that
the lock pins by digest; it also finds files in /usr/local that belong to no locked
extension. That needs a talosconfig with the role os:admin and reads as many bytes
from each node as its extensions have. CPU microcode and the lists of kernel modules
can't be compared: a node shows them in another form than an extension image.

--explain NODE shows, link by link, how a running node traces back to a lock: what
recast.lock wants, which schematic its image carries, which lock that schematic comes
from (the current one or an earlier one in .recast/locks), its extensions, Talos version,
boot entry and kernel command line. Each link is proven (recomputed from bytes), claimed
(the image says so, and nothing contradicts it), unknown, or contradicted (exit code 2).
Images that recast did not make are described too.

-o json is described in docs/schemas/drift.schema.json. -o markdown is for an issue
or a chat. -o junit is for the results page of a CI system: each node is a test case
that fails if the node is stale. -o prometheus is for a Pushgateway and uses the names
of --metrics-file.`,
		Example: `  recast drift
  recast drift --deep -o json
  recast drift --explain wk1
  recast drift -o junit > drift.xml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			connect := connectMachines
			switch {
			case explain != "" && (out != "text" && out != "json" || len(what) > 0):
				return errUsage{errors.New("--explain has the output formats text and json, and no --what")}
			case explain != "":
				return traceNode(c.Context(), s, g, explain, out, deep)
			case len(what) > 0 && !slices.Contains(what, planning.Config):
				connect = connectServers
			case len(what) == 1:
				return errUsage{errors.New("--what config is recast config diff")}
			}
			return g.with(c.Context(), s, connect, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				res, err := drift(ctx, s, p, m, deep)
				if err != nil {
					return err
				}
				s.telemetry.Drifted(res)
				code, outcome := driftOutcome(res)
				if out == "prometheus" {
					err = s.telemetry.WriteMetrics(s.out, code)
				} else {
					err = ui.WriteDrift(s.out, out, res)
				}
				return cmp.Or(err, outcome)
			})
		},
	}
	c.Flags().BoolVar(&deep, "deep", false, "read the files of the extensions back from every node")
	c.Flags().Var(parts{&what}, "what", "image,vm: without the machine configurations, for a job that has none of them (default: all)")
	c.Flags().StringVar(&explain, "explain", "", "trace one `node` back to a lock instead")
	_ = c.RegisterFlagCompletionFunc("explain", g.completeNodes)
	outputFlag(c, &out, "text", "json", "markdown", "junit", "prometheus")
	return c
}

func driftOutcome(res pipeline.DriftResult) (code int, err error) {
	switch {
	case res.Unread > 0:
		return exitFailed, fault.WithHint(fault.Unread.Of(errUnread), "the reasons are in the answer above")
	case res.Stale > 0, res.HeldLeft:
		return exitDiffers, errDiffers
	}
	return exitDone, nil
}

func drift(ctx context.Context, s *streams, p pipeline.Project, m pipeline.Machines, deep bool) (res pipeline.DriftResult, err error) {
	err = s.withPuller(p, deep, func(r images.Puller) error {
		if r == nil {
			res, err = pipeline.Drift(ctx, p, m)
		} else {
			res, err = pipeline.DeepDrift(ctx, p, m, r, s.say)
		}
		return err
	})
	return res, err
}

func traceNode(ctx context.Context, s *streams, g *globals, node, out string, deep bool) error {
	return g.withMachines(ctx, s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
		var res observe.Provenance
		err := s.withPuller(p, deep, func(r images.Puller) (err error) {
			res, err = pipeline.Provenance(ctx, p, m, r, node, s.say)
			return err
		})
		if err == nil {
			err = ui.WriteProvenance(s.out, out, res)
		}
		if err != nil {
			return err
		}
		switch {
		case res.Unread != "":
			return fault.WithHint(fault.Unread.Of(errUnread), "the reason is in the answer above")
		case res.Contradicted():
			return errDiffers
		}
		return nil
	})
}

func (s *streams) say(text string)  { fmt.Fprintln(s.err, text) }
func (s *streams) warn(text string) { fmt.Fprintf(s.err, "warning: %s\n", text) }

// withPuller runs f with a client that reads images, or with nil unless deep.
func (s *streams) withPuller(p pipeline.Project, deep bool, f func(images.Puller) error) error {
	if !deep {
		return f(nil)
	}
	var cl closers
	defer cl.close()
	r, err := connectRegistry(s, p, &cl)
	if err != nil {
		return err
	}
	return f(r)
}
