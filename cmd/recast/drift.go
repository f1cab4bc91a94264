package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

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

// driftOutcome derives the exit code and error of drift from its result.
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

// traceNode shows how a running node traces back to a lock.
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

// say prints a progress line.
func (s *streams) say(text string) { fmt.Fprintln(s.err, text) }

// warn prints a warning.
func (s *streams) warn(text string) { fmt.Fprintf(s.err, "warning: %s\n", text) }

// withPuller runs f with a client that reads images; nil unless deep.
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
