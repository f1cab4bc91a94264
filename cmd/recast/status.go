package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/internal/watch"
	"github.com/recast-sh/recast/pipeline"
)

func newStatusCmd(s *streams, g *globals) *cobra.Command {
	var out string
	var watch bool
	c := &cobra.Command{
		Use: "status", Short: "Show the active run, what is unfinished and where every disk is",
		Long: `Show who holds the claim of the cluster, how the last run that was started here ended
and, for every unfinished replacement, the state of the VM, where each of its disks is,
and which command to run next. Then list the old system disks that are kept.

Nearly all of that is stored in Proxmox, so it works on any machine, and while Talos
and Kubernetes are down. Changes nothing. Exits 0 if Proxmox could be read, whatever
the result.

With --watch it shows the active run live, and then the next one, until you press
Ctrl-C. On the machine where the run was started it looks as in recast roll, drawn from the log beside
the journal; elsewhere it shows what Proxmox knows about the run, with at most one
request every two seconds on average. It needs a terminal.`,
		Example: `  recast status
  recast status --watch
  recast status -o json        # for a script: claim, open, marked, kept`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if watch && c.Flags().Changed("output") {
				return errUsage{errors.New("--watch draws live, --output writes once: choose one")}
			}
			if watch {
				if err := canWatch(s); err != nil {
					return err
				}
			}
			p, err := g.open()
			if err != nil {
				return err
			}
			var cl closers
			defer cl.close()
			px, src, err := statusSources(s, p, &cl)
			if err != nil {
				return err
			}
			if watch {
				return watchStatus(c.Context(), s, p, px, src)
			}
			res, err := pipeline.Status(c.Context(), p, src)
			if err != nil {
				return err
			}
			return ui.WriteStatus(s.out, out, res)
		},
	}
	outputFlag(c, &out, "text", "json")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show the active run live, and then the next one")
	return c
}

// statusSources makes the clients of recast status.
func statusSources(s *streams, p pipeline.Project, cl *closers) (*pve.Client, pipeline.StatusSources, error) {
	px, err := connectProxmox(s, p, cl)
	if err != nil {
		return nil, pipeline.StatusSources{}, err
	}
	src := pipeline.StatusSources{Proxmox: px, Nodes: fromKube(s, p, cl, (*kube.Client).Nodes), Lease: fromKube(s, p, cl, (*kube.Client).Lease), Holds: fromKube(s, p, cl, (*kube.Client).Holds), Dead: holder.Dead, Suspended: holder.Suspended}
	src.MachineConfig, _ = machineConfigs(s, p) // an error means that this machine has none
	return px, src, nil
}

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
