package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster/provenance"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newProvenanceCmd(s *streams, g *globals) *cobra.Command {
	var out string
	var deep bool
	c := &cobra.Command{
		Use: "provenance NODE", Short: "Trace a running node back to a lock",
		Long: `Show, link by link, how a running node traces back to a lock: what recast.lock wants,
which schematic its image carries, which lock that schematic comes from (the current
one or an earlier one in .recast/locks), its extensions, Talos version, boot entry and
kernel command line. Each link is proven (recomputed from bytes), claimed (the image
says so, and nothing contradicts it), unknown, or contradicted.

Images that recast did not make are described too: schematics of others, images of
the Talos imager, plain releases.

With --deep, the files of the node's extensions are read back and compared with the
images of the build that it claims; that needs the role os:admin. Exits 2 if links
contradict each other, and 1 if the node could not be read.`,
		Example: `  recast provenance wk1
  recast provenance wk1 --deep -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := format(out, "text", "json"); err != nil {
				return err
			}
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				res, err := provenanceOf(ctx, s, p, m, args[0], deep)
				if err != nil {
					return err
				}
				if err := ui.WriteProvenance(s.out, out, res); err != nil {
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
		},
	}
	c.Flags().BoolVar(&deep, "deep", false, "read the files of its extensions back from the node")
	c.Flags().StringVarP(&out, "output", "o", "text", "text or json")
	return c
}

func provenanceOf(
	ctx context.Context, s *streams, p pipeline.Project, m pipeline.Machines, node string, deep bool,
) (res provenance.Provenance, err error) {
	if !deep {
		return pipeline.Provenance(ctx, p, m, nil, node, s.say)
	}
	err = withPuller(s, p, func(r images.Puller) error {
		res, err = pipeline.Provenance(ctx, p, m, r, node, s.say)
		return err
	})
	return res, err
}
