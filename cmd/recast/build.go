package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

func newBuildCmd(s *streams, g *globals) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "build", Short: "Have installer and boot ISO of the lock built, and verify what they hold",
		Long: `Register every locked schematic with the Image Factory, have its installer
built, and fetch its boot ISO into .recast/cache. Refuses while the factory
would build other extensions than the locked ones. Building takes minutes the
first time.

Names, tags and labels are not believed. Before the digests go into recast.lock,
recast opens installer and ISO and compares what they hold with the lock: Talos
version and architecture, kernel arguments, every file of every extension with
the locked extension image, firmware, the schematic entry; and that both boot
the same kernel and Talos. Everything that differs is named, and nothing is
recorded. So what recast.lock has under installer and iso was verified.

Schematics with extensions of their own, or all of them with images.builder:
imager, are built here by Talos' imager, in docker or podman or by a program of
yours, verified in the same way, and kept in images.mirror.

images.signature says what it means if the installer has no signature by
images.signingKey, or by the key that the factory publishes. recast.lock keeps
the fingerprint of the key, so that another one is noticed later.

With nothing to do it downloads nothing, writes nothing and takes well under a
second.`,
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
		Use: "publish", Short: "Put installers into the mirror and boot ISOs on Proxmox storage",
		Long: `Put the boot ISO of every locked schematic on the storages of
images.iso.storage, as far as hosts have VMs that need it: on a shared storage
once, on a local one on each host. Builds first what is not built yet.

With images.iso.delivery: auto, a Proxmox node downloads the ISO by itself where
the token may have it do so (Sys.AccessNetwork on /nodes/<node>) and the node
reaches the Image Factory; elsewhere it is uploaded, and each step says why.
Proxmox checks the SHA-256 either way. An ISO that is there is left alone: its
name and size have to be right, and where the token may have nodes download,
Proxmox compares its SHA-256, too, each time: nearly all that publishing takes
where there is nothing to do. A file of that name with other content is replaced,
but never while a VM or a snapshot refers to it.

Where images.mirror names a repository, every installer is copied there before,
by digest and with its signatures, under the tag <Talos version>-<build ID>;
recast.lock then names the copy. A tag that names another image is never moved.

Takes no talosconfig, and no kubeconfig unless a node has no vmid in recast.yaml:
the UUID of its VM is asked of Kubernetes then.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.makeImages(c.Context(), s, out, func(ctx context.Context, p pipeline.Project, i pipeline.Images, cl *closers, run *step.Runner) (schematics.Lock, error) {
				px, err := connectProxmox(s, p, cl)
				if err != nil {
					return schematics.Lock{}, err
				}
				return pipeline.Publish(ctx, p, i, pipeline.PublishSources{Proxmox: px, Nodes: kubeNodes(s, p, cl)}, run)
			})
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "text", "text or json")
	return c
}

type makeFunc func(context.Context, pipeline.Project, pipeline.Images, *closers, *step.Runner) (schematics.Lock, error)

// makeImages runs a stage that makes images, showing its progress, and writes the lock it came to.
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
	told := s.story(ctx)
	run := &step.Runner{Emit: told.Emit}
	s.telemetry.Watch(run)
	lock, err := do(ctx, p, i, &cl, run)
	told.end()
	if err != nil {
		return err
	}
	return answered(ui.WriteImages(s.out, out, lock))
}
