package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
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
				return errUsage{errors.New("--continue continues a saved plan: name it with --plan")}
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
			Vouch: func(n planning.NodePlan) bool {
				defer display.hold()()
				return !f.yes && vouch(ctx, s, typed(c), n)
			},
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

// vouch asks whether a machine in maintenance mode is the node's, which it can't prove. Talos writes the fingerprint to the console, and into
// its log, as "server certificate issued" (Talos 1.14, controllers/runtime/maintenance_service_inform.go).
func vouch(ctx context.Context, s *streams, command string, n planning.NodePlan) bool {
	if s.unasked() != "" {
		return false // the plan is refused, and says what --maintenance-fingerprint needs
	}
	fmt.Fprintf(s.err, "%s is in maintenance mode and can't prove who it is. The machine at %s shows a certificate with the fingerprint\n  %s\n"+
		"The console of %s shows it, too (in Proxmox: Console of the VM; \"server certificate issued\"). Whoever answers there gets the node's configuration, with its keys.\n",
		n.Node, n.Found.Addr, n.Unproven, n.Node)
	ok, err := confirm(ctx, s, question{command: command, text: "Are the two the same?", untouched: "nothing was changed on the nodes"}, false)
	return ok && err == nil
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
	c.Flags().StringSliceVar(&p.Fingerprints, "maintenance-fingerprint", nil, "`fingerprints` that you have seen on the consoles of machines in maintenance mode which can't prove who they are")
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
	if err != nil && (a.node != "" || len(plan.Nodes) == 0) {
		return err
	}
	code, outcome := exitDone, err // of a node of which nobody knows which VM it is: the others are shown
	if outcome == nil && a.exitCode && len(plan.Work()) > 0 {
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

func newLockCmd(s *streams, g *globals) *cobra.Command {
	var o pipeline.LockOptions
	var out string
	c := &cobra.Command{
		Use: "lock", Short: "Resolve schematics to extension digests",
		Long: `Resolve the schematics of recast.yaml against the registry's list of official
extensions and write recast.lock: every extension with its digest, the
schematic ID and the build ID of each image. Commit that file.

Extensions that recast.yaml names by reference are looked up in their own
registries. A reference without a digest is pinned to the digest of its tag. So are
the imager and the base installer, if the imager builds.

Locked digests stay as they are until --update asks for newer ones. The output shows
each digest that changed, from old to new, and which nodes that makes stale.

Once an Image Factory has built an installer, it serves it for ever. If publish
refuses an installer because the factory built it with other extensions than the
locked ones, and the factory has the locked ones by now, --rebuild names the schematic
to build again: the same content gets another schematic ID, for which the factory has
built nothing yet. recast.lock counts this (rebuild), and later locks keep the count.`,
		Example: `  recast lock
  recast lock --update           # an extension was published again
  recast lock --check            # exit 2 if --update would change something
  recast lock --rebuild default  # publish refused the factory's image`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Update && o.Check {
				return errUsage{fmt.Errorf("--update writes the lock, --check does not: choose one")}
			}
			if len(o.Rebuild) > 0 && o.Check {
				return errUsage{fmt.Errorf("--rebuild writes the lock, --check does not: choose one")}
			}
			return g.lock(c.Context(), s, o, out)
		},
	}
	c.Flags().BoolVar(&o.Update, "update", false, "take the digests that the registry has now")
	c.Flags().BoolVar(&o.Check, "check", false, "write nothing; exit 2 if --update would change the lock")
	c.Flags().StringSliceVar(&o.Rebuild, "rebuild", nil, "build the images of these `schematics` again, under another schematic ID")
	outputFlag(c, &out, "text", "json")
	return c
}

func (g *globals) lock(ctx context.Context, s *streams, o pipeline.LockOptions, out string) error {
	return using(s, g, connectImages, func(p pipeline.Project, images pipeline.Images, _ *closers) error {
		var progress slow
		o.Say = func(text string) { progress.say(s, "looking at "+text) }
		res, err := pipeline.Lock(ctx, p, images, o)
		progress.end()
		if err != nil {
			return err
		}
		for _, w := range res.Warnings {
			fmt.Fprintf(s.err, "warning: %s\nhint: %s\n", w, w.Hint)
		}
		if err := ui.WriteLock(s.out, out, res); err != nil {
			return fault.As(fault.Failed, err)
		}
		if o.Check && res.Differs {
			return errDiffers
		}
		return nil
	})
}

func newPublishCmd(s *streams, g *globals) *cobra.Command {
	var out, only string
	c := &cobra.Command{
		Use: "publish", Short: "Build the images, and copy them to the mirror and to Proxmox",
		Long: `Register every locked schematic with the Image Factory, have the factory build its
installer, and download its boot ISO into .recast/cache. Refuses while the factory
would build other extensions than the locked ones. The first build takes minutes.

Names, tags and labels are not trusted: the contents of installer and ISO are compared
with the lock, every file of every extension, before recast.lock names them.

Schematics with your own extensions (or all of them, with images.builder: imager) are
built here by Talos' imager, in docker or podman or by a program of yours, verified in
the same way, and kept in images.mirror. images.signature decides what happens if the
installer is not signed by images.signingKey or by the key that the factory publishes.
--only build ends here.

Copy the boot ISO of every locked schematic to the storages of images.iso.storage
for the hosts whose VMs need it: once to a shared storage, once per host to a local
one. With images.boot: disk or auto, disk images are built, verified, and go to
the storages of images.disk.storage in the same way.

With images.iso.delivery: auto, a Proxmox node downloads the ISO itself if the token
allows that and the node reaches the Image Factory; otherwise recast uploads it, and
the step says why. Proxmox checks the SHA-256 either way. An ISO that is already there
is kept if its name and size are right; if the token lets nodes download, Proxmox also
compares its SHA-256. A file of that name with other content is replaced, but never
while a VM or a snapshot refers to it.

If images.mirror names a repository, every installer is copied there first, by digest
and with its signatures, under the tag <Talos version>-<build ID>; recast.lock then
names the copy. A tag that names another image is never moved.

Needs no talosconfig. Needs a kubeconfig only if a node has no vmid in recast.yaml:
the UUID of its VM is then read from Kubernetes.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return using(s, g, connectImages, func(p pipeline.Project, i pipeline.Images, cl *closers) error {
				display, run := s.runner(c.Context())
				lock, err := publish(c.Context(), s, p, i, cl, run, only == "build")
				display.end()
				if err != nil {
					return err
				}
				return answered(ui.WriteImages(s.out, out, lock))
			})
		},
	}
	outputFlag(c, &out, "text", "json")
	c.Flags().Var(oneOf(&only, "all", "build"), "only", "build: build and verify the images, and copy nothing")
	return c
}

func publish(ctx context.Context, s *streams, p pipeline.Project, i pipeline.Images, cl *closers, run *step.Runner, build bool) (schematics.Lock, error) {
	if build {
		return pipeline.Build(ctx, p, i, run)
	}
	px, err := connectProxmox(s, p, cl)
	if err != nil {
		return schematics.Lock{}, err
	}
	return pipeline.Publish(ctx, p, i, pipeline.PublishSources{Proxmox: px, Nodes: fromKube(s, p, cl, (*kube.Client).Nodes)}, run)
}

const pruneLong = `Remove what finished rolls left behind. First shows what would be removed, what is kept
and why, and asks.

Old system disks: each recreate and reimage leaves the node's previous system disk on
its parking VM, for recast undo. The newest roll.keepDisks of each node are kept;
all others are freed, and so are those of nodes that are no longer in recast.yaml. With
--keep-disks 0 none is kept: then the way back is a roll to the previous lock. A disk
is freed only if the record of a finished replacement names it and it is as recast left
it. A parking VM that owns nothing any more is deleted. Never touched: disks of an
unfinished replacement, and disks that are locked, have snapshots, are named by
another VM, or are in no record of recast.

Scratch VMs on which a killed run tried an image (recast roll --rehearse) are removed
together with the disks, if each is still as recast made it.

Boot ISOs of recast (recast-<talos>-<build>-<platform>-<arch>.iso) on the storages of
images.iso.storage, on every Proxmox node that is up. An ISO is kept if any VM or
snapshot of the whole Proxmox cluster refers to it, even in a pending change; if
recast.lock or the previous lock has it; if an unfinished replacement may need it or a
VM was made from its build; and if it is younger than --older-than, since other Talos
clusters may share the storage. Disk images of recast (.qcow2) on the storages of
images.disk.storage go by the same rules.

Boot ISOs and disk images of recast in .recast/cache/iso, where builds keep them on this machine, by
the same rules; and what a killed build left there at least a day ago.

Installers in images.mirror, only with --only mirror: a registry can't tell who else
needs its contents. Removed are tags of recast (<talos>-<build>) with their signatures
and referrers; never tags of others, or an image that another tag names. An installer
is kept by the same rules as an ISO, and for --older-than after it was built. The
credentials need permission to delete; ghcr.io and Docker Hub do not support deletion
through the registry API.

Everything is checked again right before it is removed. Refuses if the token does not
provably see every VM, without quorum, and while another run is active. Disks and
parking VMs need the privileges of a roll; ISOs and disk images need
Datastore.Allocate on their storages. --only selects one kind.`

func newPruneCmd(s *streams, g *globals) *cobra.Command {
	var o pipeline.PruneOptions
	var keepDisks int
	var yes bool
	var out string
	c := &cobra.Command{
		Use: "prune", Short: "Remove disks, VMs and images that are no longer needed",
		Long: pruneLong,
		Example: `  recast prune
  recast prune --only disks --keep-disks 0
  recast prune --only cache
  recast prune --only mirror --older-than 2160h
  recast prune --older-than 720h --yes -o json    # in CI`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.OlderThan < 0 {
				return errUsage{errors.New("--older-than must not be negative")}
			}
			if err := pruneKinds(c, &o, keepDisks); err != nil {
				return err
			}
			return runPrune(c, s, g, o, yes, out)
		},
	}
	c.Flags().DurationVar(&o.OlderThan, "older-than", 168*time.Hour, "keep ISOs and installers that are younger than this")
	c.Flags().IntVar(&keepDisks, "keep-disks", 0, "old system disks to keep for each node (default: roll.keepDisks)")
	c.Flags().StringVar(&o.Only, "only", "", "remove only one `kind`: isos (and disk images), disks (old system disks), cache or mirror")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask; needed where there is no terminal")
	outputFlag(c, &out, "text", "json")
	return c
}

// pruneKinds checks --only and --keep-disks, and sets o.KeepDisks.
func pruneKinds(c *cobra.Command, o *pipeline.PruneOptions, keepDisks int) error {
	switch o.Only {
	case "", pipeline.PruneISOs, pipeline.PruneDisks, pipeline.PruneCache, pipeline.PruneMirror:
	default:
		return errUsage{fmt.Errorf("--only %q: there are isos, disks, cache and mirror", o.Only)}
	}
	if !c.Flags().Changed("keep-disks") {
		return nil
	}
	switch {
	case keepDisks < 0:
		return errUsage{errors.New("--keep-disks must not be negative")}
	case o.Only != "" && o.Only != pipeline.PruneDisks:
		return errUsage{fmt.Errorf("--keep-disks is about disks, which --only %s leaves alone", o.Only)}
	}
	o.KeepDisks = &keepDisks
	return nil
}

func runPrune(c *cobra.Command, s *streams, g *globals, o pipeline.PruneOptions, yes bool, out string) error {
	ctx := c.Context()
	connect := func(s *streams, p pipeline.Project, cl *closers) (*pve.Client, error) {
		if o.Removed == "" {
			learnLocks(ctx, s, p)
		}
		return connectProxmox(s, p, cl)
	}
	return using(s, g, connect, func(p pipeline.Project, px *pve.Client, cl *closers) (err error) {
		if o.Only == pipeline.PruneMirror {
			if o.Mirror, err = connectRegistry(s, p, cl); err != nil {
				return err
			}
		}
		display, run := s.runner(ctx)
		o.Holder, o.Dead, o.Suspended, o.MayAsk = holder.This(), holder.Dead, holder.Suspended, s.mayAskUnless(yes, c)
		o.Confirm = func(rep pipeline.PruneReport) (bool, error) {
			defer display.hold()()
			if err := ui.WritePrune(s.err, "text", rep); err != nil {
				return false, err
			}
			return confirm(ctx, s, question{command: typed(c), text: ui.PruneQuestion(rep), untouched: "nothing was removed"}, yes)
		}
		rep, err := pipeline.Prune(ctx, p, px, px, run, o)
		display.end()
		if err != nil && !ui.Pruned(rep) {
			return err
		}
		return errors.Join(err, answered(ui.WritePrune(s.out, out, rep)))
	})
}
