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
			if only == "build" {
				return g.makeImages(c.Context(), s, out, build)
			}
			return g.makeImages(c.Context(), s, out, func(ctx context.Context, p pipeline.Project, i pipeline.Images, cl *closers, run *step.Runner) (schematics.Lock, error) {
				px, err := connectProxmox(s, p, cl)
				if err != nil {
					return schematics.Lock{}, err
				}
				return pipeline.Publish(ctx, p, i, pipeline.PublishSources{Proxmox: px, Nodes: fromKube(s, p, cl, (*kube.Client).Nodes)}, run)
			})
		},
	}
	outputFlag(c, &out, "text", "json")
	c.Flags().Var(oneOf(&only, "all", "build"), "only", "build: build and verify the images, and copy nothing")
	return c
}

func build(ctx context.Context, p pipeline.Project, i pipeline.Images, _ *closers, run *step.Runner) (schematics.Lock, error) {
	return pipeline.Build(ctx, p, i, run)
}

type makeFunc func(context.Context, pipeline.Project, pipeline.Images, *closers, *step.Runner) (schematics.Lock, error)

// makeImages runs a stage that builds or publishes images, shows its progress, and prints the resulting lock.
func (g *globals) makeImages(ctx context.Context, s *streams, out string, do makeFunc) error {
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
