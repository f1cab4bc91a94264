package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

func newBuildCmd(s *streams, g *globals) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "build", Short: "Build the installer and boot ISO of the lock, and verify their contents",
		Long: `Register every locked schematic with the Image Factory, have the factory build its
installer, and download its boot ISO into .recast/cache. Refuses while the factory
would build other extensions than the locked ones. The first build takes minutes.

Names, tags and labels are not trusted. Before recast writes digests to recast.lock,
it opens the installer and the ISO and compares their contents with the lock: Talos
version and architecture, kernel arguments, every file of every extension with
the locked extension image, firmware, the schematic entry; and it checks that both
boot the same kernel and Talos. If anything differs, recast names it and records
nothing. So what recast.lock has under installer and iso was verified.

Schematics with your own extensions (or all of them, with images.builder: imager)
are built here by Talos' imager, in docker or podman or by a program of yours,
verified in the same way, and kept in images.mirror.

images.signature decides what happens if the installer is not signed by
images.signingKey or by the key that the factory publishes. recast.lock keeps
the fingerprint of the key, so a later change of the key is detected.

With images.boot: disk or auto, the disk image is downloaded and verified, too.

If there is nothing to do, it downloads nothing, writes nothing and takes well under
a second.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.makeImages(c.Context(), s, out, func(ctx context.Context, p pipeline.Project, i pipeline.Images, _ *closers, run *step.Runner) (schematics.Lock, error) {
				return pipeline.Build(ctx, p, i, run)
			})
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "text", "text or json")
	return c
}

func newPublishCmd(s *streams, g *globals) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "publish", Short: "Copy installers to the mirror and boot ISOs to Proxmox storage",
		Long: `Copy the boot ISO of every locked schematic to the storages of images.iso.storage
for the hosts whose VMs need it: once to a shared storage, once per host to a local
one. Images that are not built yet are built first. With images.boot: disk or auto, disk
images go to the storages of images.disk.storage in the same way.

With images.iso.delivery: auto, a Proxmox node downloads the ISO itself if the token
allows that (Sys.AccessNetwork on /nodes/<node>) and the node reaches the Image
Factory. Otherwise recast uploads it, and the step says why. Proxmox checks the
SHA-256 either way. An ISO that is already there is kept if its name and size are
right; if the token lets nodes download, Proxmox also compares its SHA-256 each time,
which is most of the time that publishing takes when there is nothing to do. A file
of that name with other content is replaced, but never while a VM or a snapshot
refers to it.

If images.mirror names a repository, every installer is copied there first, by digest
and with its signatures, under the tag <Talos version>-<build ID>; recast.lock then
names the copy. A tag that names another image is never moved.

Needs no talosconfig. Needs a kubeconfig only if a node has no vmid in recast.yaml:
the UUID of its VM is then read from Kubernetes.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.makeImages(c.Context(), s, out, func(ctx context.Context, p pipeline.Project, i pipeline.Images, cl *closers, run *step.Runner) (schematics.Lock, error) {
				px, err := connectProxmox(s, p, cl)
				if err != nil {
					return schematics.Lock{}, err
				}
				return pipeline.Publish(ctx, p, i, pipeline.PublishSources{Proxmox: px, Nodes: fromKube(s, p, cl, (*kube.Client).Nodes)}, run)
			})
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "text", "text or json")
	return c
}

type makeFunc func(context.Context, pipeline.Project, pipeline.Images, *closers, *step.Runner) (schematics.Lock, error)

// makeImages runs a stage that builds or publishes images, shows its progress, and prints the resulting lock.
func (g *globals) makeImages(ctx context.Context, s *streams, out string, do makeFunc) error {
	if err := format(out, "text", "json"); err != nil {
		return err
	}
	p, err := g.open()
	if err != nil {
		return err
	}
	var cl closers
	defer cl.close()
	i, err := connectImages(s, p, &cl)
	if err != nil {
		return err
	}
	display := s.displaySteps(ctx)
	run := &step.Runner{Emit: display.Emit}
	s.telemetry.Watch(run)
	lock, err := do(ctx, p, i, &cl, run)
	display.end()
	if err != nil {
		return err
	}
	return answered(ui.WriteImages(s.out, out, lock))
}
