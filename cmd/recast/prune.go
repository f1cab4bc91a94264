package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

const pruneLong = `Free what finished rolls have left. Shows first what would go, what stays and
why, and asks.

Old system disks: each recreate and reimage leaves the previous system disk of the
node on its parking VM, for recast rollback. The newest roll.keepDisks of each
node stay, all others are freed; so are those of nodes that recast.yaml has no
longer. With --keep-disks 0 none stays: the way back is a roll to the previous
lock then. Only what the record of a finished replacement names is freed, and only
as recast left it. A parking VM that owns nothing then is deleted. Nothing of an
unfinished replacement is touched, nor what is locked, has snapshots, is named by
another VM, or is in no record of recast.

Scratch VMs on which a killed run has tried a boot ISO out (recast roll --rehearse),
as part of the disks: only while each is as recast made it.

Boot ISOs of ours (recast-<talos>-<build>-<platform>-<arch>.iso) on the storages
of images.iso.storage, on every Proxmox node that is up. An ISO stays if any VM or
snapshot of the whole Proxmox cluster refers to it, also by a change that waits for
a start; if recast.lock or the lock before it has it; if an unfinished replacement
may need it, or a VM was made from its build; and if it is younger than
--older-than, since other Talos clusters may share the storage.

Boot ISOs of ours in .recast/cache/iso, where builds keep them on this machine, by
the same rules, and what a build that was killed has left there a day ago or earlier.

Installers in images.mirror, only with --only mirror: a registry does not tell who
else needs what is in it. Tags of ours (<talos>-<build>) with their signatures and
what refers to them; tags of others are never touched, nor an image that another tag
names. An installer stays by the same rules as an ISO, and for --older-than after it
was built. The credentials need the right to delete; ghcr.io and Docker Hub do not
delete by the registry's API at all.

Everything is looked at again right before it goes. Refuses where the token does
not provably see every VM, without quorum, and while another run is at work. Disks
and parking VMs take what a roll takes; deleting ISOs takes Datastore.Allocate on
their storages. --only takes one kind alone.`

func newPruneCmd(s *streams, g *globals) *cobra.Command {
	var f struct {
		olderThan time.Duration
		keepDisks int
		only      string
		yes       bool
		out       string
	}
	c := &cobra.Command{
		Use: "prune", Short: "Remove old system disks, parking and scratch VMs, boot ISOs, cached ISOs and mirrored installers that nothing needs any more",
		Long: pruneLong,
		Example: `  recast prune
  recast prune --only disks --keep-disks 0
  recast prune --only cache
  recast prune --only mirror --older-than 2160h
  recast prune --older-than 720h --yes -o json    # in CI`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := format(f.out, "text", "json"); err != nil {
				return err
			}
			if f.olderThan < 0 {
				return errUsage{errors.New("--older-than must not be negative")}
			}
			o := pipeline.PruneOptions{Only: f.only, OlderThan: f.olderThan, Holder: holder(), Dead: dead}
			if err := pruneKinds(c, &o, f.keepDisks); err != nil {
				return err
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
			if f.only == pipeline.PruneMirror {
				if o.Mirror, err = connectRegistry(s, p, &cl); err != nil {
					return err
				}
			}
			ctx := c.Context()
			told := s.story(ctx)
			run := &step.Runner{Emit: told.Emit}
			s.telemetry.Watch(run)
			o.Confirm = func(rep pipeline.PruneReport) (bool, error) {
				defer told.hold()()
				return confirmPrune(ctx, s, rep, f.yes)
			}
			rep, err := pipeline.Prune(ctx, p, px, px, run, o)
			told.end()
			if err != nil && !removedAny(rep) {
				return err
			}
			return errors.Join(err, answered(ui.WritePrune(s.out, f.out, rep)))
		},
	}
	c.Flags().DurationVar(&f.olderThan, "older-than", 168*time.Hour, "keep ISOs that have been there or in the cache, and installers that were built, for less than this")
	c.Flags().IntVar(&f.keepDisks, "keep-disks", 0, "old system disks of each node that stay (default: roll.keepDisks)")
	c.Flags().StringVar(&f.only, "only", "", "one `kind` only: isos, disks, cache or mirror")
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask; needed where there is no terminal")
	c.Flags().StringVarP(&f.out, "output", "o", "text", "`format` of the report: text or json")
	return c
}

// pruneKinds completes what is to be removed.
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

func confirmPrune(ctx context.Context, s *streams, rep pipeline.PruneReport, yes bool) (bool, error) {
	if err := ui.WritePrune(s.err, "text", rep); err != nil {
		return false, err
	}
	return confirm(ctx, s, question{command: "recast prune", text: ui.PruneQuestion(rep), untouched: "nothing was removed"}, yes)
}

func removedAny(rep pipeline.PruneReport) bool {
	return slices.ContainsFunc(rep.ISOs, func(v images.Verdict) bool { return v.Removed }) ||
		slices.ContainsFunc(rep.Disks, func(v cluster.KeptVerdict) bool { return v.Removed }) ||
		slices.ContainsFunc(rep.VMs, func(v cluster.ParkingVerdict) bool { return v.Removed }) ||
		slices.ContainsFunc(rep.Scratch, func(v cluster.ScratchVerdict) bool { return v.Removed }) ||
		slices.ContainsFunc(rep.Cache, func(v images.CacheVerdict) bool { return v.Removed }) ||
		slices.ContainsFunc(rep.Mirror, func(v images.MirrorVerdict) bool { return v.Removed })
}
