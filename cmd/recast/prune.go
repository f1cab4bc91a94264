package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newPruneCmd(s *streams, g *globals) *cobra.Command {
	var f struct {
		olderThan time.Duration
		yes       bool
		out       string
	}
	c := &cobra.Command{
		Use: "prune", Short: "Remove boot ISOs that nothing needs any more",
		Long: `Remove boot ISOs of ours (recast-<talos>-<build>-<platform>-<arch>.iso) from the
storages of images.iso.storage, on every Proxmox node that is up. Shows first what
would go, what stays and why, and asks.

An ISO stays if any VM or snapshot of the whole Proxmox cluster refers to it, also
by a change that waits for a start; if recast.lock or the lock before it has it; if
an unfinished replacement may need it, or a VM was made from its build; and if it
is younger than --older-than, since other Talos clusters may share the storage.
Whether it is used is asked again right before each one is deleted.

Refuses where the token does not provably see every VM, without quorum, and while
another run is at work. Deleting takes Datastore.Allocate on the storages.`,
		Example: `  recast prune
  recast prune --older-than 720h --yes -o json    # in CI`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := format(f.out, "text", "json"); err != nil {
				return err
			}
			if f.olderThan < 0 {
				return errUsage{errors.New("--older-than must not be negative")}
			}
			p, err := g.open()
			if err != nil {
				return err
			}
			var cl closers
			defer cl.close()
			px, err := connectProxmox(s, p, &cl)
			if err != nil {
				return err
			}
			ctx := c.Context()
			run := &step.Runner{Emit: ui.NewProgress(s.err).Emit}
			rep, err := pipeline.Prune(ctx, p, px, px, run, pipeline.PruneOptions{
				OlderThan: f.olderThan, Holder: holder(), Dead: dead,
				Confirm: func(rep pipeline.PruneReport) (bool, error) { return confirmPrune(ctx, s, rep, f.yes) },
			})
			if err != nil && !removedAny(rep) {
				return err
			}
			return errors.Join(err, ui.WritePrune(s.out, f.out, rep))
		},
	}
	c.Flags().DurationVar(&f.olderThan, "older-than", 168*time.Hour, "keep ISOs that have been there for less than this")
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask; needed where there is no terminal")
	c.Flags().StringVarP(&f.out, "output", "o", "text", "`format` of the report: text or json")
	return c
}

func confirmPrune(ctx context.Context, s *streams, rep pipeline.PruneReport, yes bool) (bool, error) {
	if err := ui.WritePrune(s.err, "text", rep); err != nil {
		return false, err
	}
	return confirm(ctx, s, question{command: "recast prune", text: "Delete these ISOs?", untouched: "nothing was removed"}, yes)
}

func removedAny(rep pipeline.PruneReport) bool {
	for _, v := range rep.ISOs {
		if v.Removed {
			return true
		}
	}
	return false
}
