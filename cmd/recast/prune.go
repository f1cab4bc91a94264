package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

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
	var f struct {
		olderThan time.Duration
		keepDisks int
		only      string
		yes       bool
		out       string
	}
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
			if f.olderThan < 0 {
				return errUsage{errors.New("--older-than must not be negative")}
			}
			o := pipeline.PruneOptions{Only: f.only, OlderThan: f.olderThan, Holder: holder.This(), Dead: holder.Dead, Suspended: holder.Suspended}
			if err := pruneKinds(c, &o, f.keepDisks); err != nil {
				return err
			}
			p, err := g.open()
			if err != nil {
				return err
			}
			learnLocks(c.Context(), s, p)
			return runPrune(c, s, p, o, f.yes, f.out)
		},
	}
	c.Flags().DurationVar(&f.olderThan, "older-than", 168*time.Hour, "keep ISOs and installers that are younger than this")
	c.Flags().IntVar(&f.keepDisks, "keep-disks", 0, "old system disks to keep for each node (default: roll.keepDisks)")
	c.Flags().StringVar(&f.only, "only", "", "remove only one `kind`: isos (and disk images), disks (old system disks), cache or mirror")
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask; needed where there is no terminal")
	outputFlag(c, &f.out, "text", "json")
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

func confirmPrune(ctx context.Context, s *streams, command string, rep pipeline.PruneReport, yes bool) (bool, error) {
	if err := ui.WritePrune(s.err, "text", rep); err != nil {
		return false, err
	}
	return confirm(ctx, s, question{command: command, text: ui.PruneQuestion(rep), untouched: "nothing was removed"}, yes)
}

func removedAny(rep pipeline.PruneReport) bool {
	return slices.ContainsFunc(rep.ISOs, func(v images.Verdict) bool { return v.Removed }) ||
		slices.ContainsFunc(rep.Disks, func(v prune.KeptVerdict) bool { return v.Removed }) ||
		slices.ContainsFunc(rep.VMs, func(v prune.ParkingVerdict) bool { return v.Removed }) ||
		slices.ContainsFunc(rep.Scratch, func(v roll.ScratchVerdict) bool { return v.Removed }) ||
		slices.ContainsFunc(rep.Cache, func(v images.CacheVerdict) bool { return v.Removed }) ||
		slices.ContainsFunc(rep.Mirror, func(v images.MirrorVerdict) bool { return v.Removed })
}
