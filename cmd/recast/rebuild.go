package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/rebuild"
)

func newRebuildCmd(s *streams, g *globals) *cobra.Command {
	f := rollFlags{asks: "Make all control planes again, and lose all changes in Kubernetes since that snapshot?"}
	var of rebuild.Options
	c := &cobra.Command{
		Use: "rebuild CONTROL-PLANE --from FILE", Short: "Make the control planes of a broken cluster again",
		Long: `For a cluster whose etcd is lost: the VM or the disk of the only control plane is gone,
or two of three are, for good. What is left of all control planes is taken away: their
VMs are stopped and deleted, and all their disks stay parked. Then the named one is made
as by recast bootstrap, and etcd begins on it with the snapshot: one of an earlier
recast backup, or by talosctl etcd snapshot from a control plane that is left. The
others are made again and join it. Workers are left as they are, and their pods keep
running. One whose VM is gone: kubectl delete node NAME, then recast roll.

All changes in Kubernetes since the snapshot are lost: pods that run on workers but are
not in it are stopped.

Each control plane needs a whole class and its machine configuration in
talos.machineConfigs, with the secrets that the cluster has. Refused with exit code 4 if
the Kubernetes API answers, an etcd has a leader, a control plane runs and does not
answer, a Proxmox host with VMs does not answer, or one of the other control planes
still answers once its VM is gone. No disk is
freed: recast status lists them, and recast remove NODE --free NODE frees those of a node.

Safe to run again: with the same snapshot it goes on where it was interrupted, here or
on another machine. Nothing else finishes it. With several control planes, try first to
bring back as many as etcd needs: that loses nothing.`,
		Example: `  talosctl -n ADDRESS etcd snapshot before.db   # if one still answers
  recast rebuild cp1 --from before.db
  recast roll                          # what is not as wanted besides`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if of.First = args[0]; of.File == "" {
				return errUsage{errors.New("--from is needed: the snapshot of etcd with which the cluster begins again")}
			}
			if err := makeCredentials(c.Context(), s, g, of.First); err != nil {
				return errOpening{err}
			}
			return f.withRun(c, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				var cl closers
				defer cl.close()
				images, err := connectImages(s, p, &cl)
				if err != nil {
					return pipeline.Report{}, err
				}
				return rebuild.Rebuild(ctx, p, images, m, run, o, of)
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&of.File, "from", "", "`file` with the snapshot of etcd")
	c.Flags().BoolVar(&of.Copied, "copied", false, "the file was copied from a member's data directory (member/snap/db) and has no checksum")
	return c
}
