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

func newRestoreCmd(s *streams, g *globals) *cobra.Command {
	var f struct {
		node   string
		copied bool
		yes    bool
		out    string
	}
	c := &cobra.Command{
		Use: "restore FILE --node NAME", Short: "Restore a single control plane's etcd from a snapshot",
		Long: `Upload an etcd snapshot to the only control plane of a cluster, whose own etcd data is
lost, make Talos bootstrap from it, and wait until etcd, the Kubernetes API and the
Node are back. All changes in Kubernetes since the snapshot are lost: pods that run on
workers but are not in the snapshot are stopped.

The machine must be up, configured as that control plane with the same secrets as
before, and waiting for a bootstrap: newly installed, or reset with
talosctl reset --system-labels-to-wipe EPHEMERAL --reboot --graceful=false. Before
anything changes, the snapshot is verified (see recast backup) and must come from an
etcd that had this node as a member. Refused with exit code 4 if the machine has etcd
data, if it is not the VM of that node, or unless Talos' discovery knows all other
nodes, as workers.

Safe to run again: it continues where it was interrupted. It takes the claim of the
cluster and needs a talosconfig with the role os:admin.`,
		Example: `  recast restore .recast/etcd/etcd-prod-20261121T040000Z.db --node cp1
  recast restore db --copied --node cp1 --yes   # copied from a member's data directory`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if f.node == "" {
				return errUsage{errors.New("--node is needed: the machine that gets the data")}
			}
			p, err := g.open()
			if err != nil {
				return err
			}
			var cl closers
			defer cl.close()
			m, err := connectMachines(s, p, &cl)
			if err != nil {
				return err
			}
			ctx := c.Context()
			display := s.displaySteps(ctx)
			run := &step.Runner{Emit: display.Emit}
			s.telemetry.Watch(run)
			rep, err := pipeline.Restore(ctx, p, m, run, pipeline.RestoreOptions{
				File: args[0], Node: f.node, Copied: f.copied,
				Confirm: func(rep pipeline.RestoreReport) (bool, error) {
					defer display.hold()()
					return confirmRestore(ctx, s, typed(c, "--node", rep.Node), rep, f.yes)
				},
				Claim: pipeline.RollOptions{Holder: holder.This(), Dead: holder.Dead, Suspended: holder.Suspended, Began: shareRuns(ctx, s, p, &cl), MayAsk: s.mayAskUnless(f.yes, c)},
			})
			display.end()
			if rep.Run == "" {
				return err
			}
			return errors.Join(err, answered(ui.WriteRestore(s.out, f.out, rep)))
		},
	}
	c.Flags().StringVar(&f.node, "node", "", "`name` of the control plane")
	c.Flags().BoolVar(&f.copied, "copied", false, "FILE was copied from a member's data directory (member/snap/db) and has no checksum")
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask; needed where there is no terminal")
	outputFlag(c, &f.out, "text", "json")
	return c
}

func confirmRestore(ctx context.Context, s *streams, command string, rep pipeline.RestoreReport, yes bool) (bool, error) {
	if err := ui.WriteRestore(s.err, "text", rep); err != nil {
		return false, err
	}
	q := question{
		command: command,
		text:    "Restore etcd from this, and lose all changes in Kubernetes since?", untouched: "nothing was restored",
	}
	if !rep.Bootstrapped.IsZero() {
		q.text = "Keep waiting?"
	}
	return confirm(ctx, s, q, yes)
}
