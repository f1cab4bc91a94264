package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newStatusCmd(s *streams, g *globals) *cobra.Command {
	var out string
	var watch bool
	c := &cobra.Command{
		Use: "status", Short: "Who is at work, what is unfinished, where every disk is",
		Long: `Say who holds the claim of the cluster, how the last run that was started here
ended and, for every unfinished replacement, what has become of the VM, where each
of its disks is, and what to type. Then list the old system disks that are kept.

Nearly all of that is in Proxmox, so it works on any machine, and while Talos and
Kubernetes are down. Changes nothing. Exits 0 if Proxmox could be read, whatever
there is to say.

With --watch it draws the run that is in progress until that ends, or Ctrl-C: on the
machine where the run was begun as recast roll draws it, from the log beside its
journal; elsewhere what Proxmox has of it, with no more than a request every two
seconds on average. It needs a terminal.`,
		Example: `  recast status
  recast status --watch
  recast status -o json        # for a script: claim, open, marked, kept`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := format(out, "text", "json"); err != nil {
				return err
			}
			if watch && c.Flags().Changed("output") {
				return errUsage{errors.New("--watch draws, --output writes once: choose one")}
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
			px, err := connectProxmox(s, p, &cl)
			if err != nil {
				return err
			}
			src := pipeline.StatusSources{Proxmox: px, Nodes: kubeNodes(s, p, &cl), Lease: claimLease(s, p, &cl)}
			src.MachineConfig, _ = machineConfigs(p) // on this machine there is none then
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
	c.Flags().StringVarP(&out, "output", "o", "text", "text or json")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "draw the run that is in progress until it ends")
	return c
}
