package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/lab"
	"github.com/recast-sh/recast/pipeline"
)

func newLabCmd(s *streams) *cobra.Command {
	return lab.Command(lab.Program{
		Out: s.out, Err: s.err, Differs: errDiffers,
		Run: func(ctx context.Context, args ...string) error {
			root := newRootCmd(s)
			root.SetArgs(args)
			return root.ExecuteContext(ctx)
		},
		Lock: func(ctx context.Context, config string) (map[string]string, error) {
			p, err := (&globals{config: config}).open()
			if err != nil {
				return nil, err
			}
			var cl closers
			defer cl.close()
			images, err := connectImages(s, p, &cl)
			if err != nil {
				return nil, err
			}
			res, err := pipeline.Lock(ctx, p, images, pipeline.LockOptions{Update: true})
			schematics := map[string]string{}
			for name, e := range res.Lock.Schematics {
				schematics[name] = e.Schematic
			}
			return schematics, err
		},
	})
}
