package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/internal/watch"
	"github.com/recast-sh/recast/pipeline"
)

// canWatch says why status can't be drawn; nil if it can.
func canWatch(s *streams) error {
	if out, ok := s.out.(*os.File); ok && ui.IsTerminal(out) && live.Able(out, os.Getenv("TERM")) {
		return nil
	}
	return fault.WithHint(errUsage{errors.New("--watch needs a terminal, and standard output is none")}, "for a script: recast status -o json")
}

// watchStatus draws one run after the other, until the user presses Ctrl-C.
func watchStatus(ctx context.Context, s *streams, p pipeline.Project, px pipeline.Listing, src pipeline.StatusSources) error {
	defer s.err.to(nil)
	for {
		if err := watchRun(ctx, s, p, px, src); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

func watchRun(ctx context.Context, s *streams, p pipeline.Project, px pipeline.Listing, src pipeline.StatusSources) error {
	out := s.out.(*os.File) // canWatch has checked that
	view := live.NewView(out, "recast status --watch", os.Getenv("NO_COLOR") == "")
	w := watch.New(p, px, src, view)
	s.err.to(func(p []byte) bool { return view.Print(string(p)) })
	view.Start()
	last, err := w.Until(ctx)
	if last != "" {
		view.Close()
	} else if view.Pause(); err == nil { // the run itself goes on
		last = w.Leaving()
	}
	if last != "" {
		fmt.Fprintln(s.out, last)
	}
	return err
}
