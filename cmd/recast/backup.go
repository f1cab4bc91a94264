package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newBackupCmd(s *streams, g *globals) *cobra.Command {
	var o pipeline.BackupOptions
	var out string
	c := &cobra.Command{
		Use: "backup", Short: "Save a verified snapshot of etcd",
		Long: `Check etcd through the endpoints of the talosconfig, read a snapshot from the leader
(or from another voting member that follows a leader) and save it on this machine.
Without --to it is saved in the directory roll.etcdSnapshot as etcd-CLUSTER-TIME.db.
The file gets its name only when it is complete, is an etcd database and matches its
checksum. It holds every secret of Kubernetes: protect it accordingly.

Nothing in the cluster changes. A talosconfig with the role os:etcd:backup is enough:
talosctl config new --roles os:etcd:backup. Proxmox and Kubernetes are not contacted.
Problems of etcd are printed as warnings; if its members hold different data (alarm
CORRUPT), or none follows a leader, nothing is saved and the exit code is 4.

--keep N keeps the newest N backups of this cluster and removes older ones, after the
new one is verified. Snapshots that recast roll saved are not removed.`,
		Example: `  recast backup
  recast backup --to /mnt/backups/ --keep 14   # nightly, off the cluster
  recast backup --to before.db -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Keep < 0 {
				return errUsage{errors.New("--keep must not be negative")}
			}
			p, err := g.open()
			if err != nil {
				return err
			}
			var cl closers
			defer cl.close()
			t, err := connectTalos(s, p, &cl)
			if err != nil {
				return err
			}
			res, err := pipeline.Backup(c.Context(), p, t, o, s.say)
			if res.File == "" {
				return err
			}
			return errors.Join(err, ui.WriteBackup(s.out, out, res))
		},
	}
	c.Flags().StringVar(&o.To, "to", "", "`directory` (with a trailing / if it does not exist yet) or a new file (default: roll.etcdSnapshot)")
	c.Flags().IntVar(&o.Keep, "keep", 0, "how many backups of this cluster to keep in the directory (default: all)")
	outputFlag(c, &out, "text", "json")
	return c
}
