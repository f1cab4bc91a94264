package main

import (
	"context"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

// traceNode shows how a running node traces back to a lock.
func traceNode(ctx context.Context, s *streams, g *globals, node, out string, deep bool) error {
	return g.withMachines(ctx, s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
		res, err := provenanceOf(ctx, s, p, m, node, deep)
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
}

func provenanceOf(
	ctx context.Context, s *streams, p pipeline.Project, m pipeline.Machines, node string, deep bool,
) (res observe.Provenance, err error) {
	if !deep {
		return pipeline.Provenance(ctx, p, m, nil, node, s.say)
	}
	err = withPuller(s, p, func(r images.Puller) error {
		res, err = pipeline.Provenance(ctx, p, m, r, node, s.say)
		return err
	})
	return res, err
}
