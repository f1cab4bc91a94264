package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
	"github.com/spf13/cobra"
)

func newLockCmd(s *streams, g *globals) *cobra.Command {
	var o pipeline.LockOptions
	var out string
	c := &cobra.Command{
		Use: "lock", Short: "Resolve schematics to extension digests",
		Long: `Resolve the schematics of recast.yaml against the registry's list of official
extensions and write recast.lock: every extension with its digest, the
schematic ID and the build ID of each image. Commit that file.

Extensions that recast.yaml names by reference are looked up in their own
registries. A reference without a digest is pinned to the digest of its tag.

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
	return using(s, g, connectProxmox, func(p pipeline.Project, px *pve.Client, cl *closers) (err error) {
		ctx := c.Context()
		if o.Removed == "" {
			learnLocks(ctx, s, p)
		}
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
