package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
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
	p, err := g.open()
	if err != nil {
		return err
	}
	var cl closers
	defer cl.close()
	images, err := connectImages(s, p, &cl)
	if err != nil {
		return err
	}
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
}
