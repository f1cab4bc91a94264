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
		Long: `Ask the endpoints of the talosconfig how etcd is, read a snapshot from the leader,
else from another voting member that follows one, and save it on this machine:
without --to in the directory roll.etcdSnapshot, as etcd-CLUSTER-TIME.db. The file
appears under its name only when all of it is there and it is a database of etcd
that matches its checksum. It holds every secret of Kubernetes: keep it as such.

It changes nothing in the cluster and takes a talosconfig with the role
os:etcd:backup, no more: talosctl config new --roles os:etcd:backup. Neither
Proxmox nor Kubernetes is asked. What is wrong with etcd is told as a warning;
where its members do not hold the same data (alarm CORRUPT), or none follows a
leader, nothing is saved and it exits 4.

--keep N removes older backups of this cluster beyond the newest N, after the new
one was verified; snapshots that recast roll has saved stay.`,
		Example: `  recast backup
  recast backup --to /mnt/backups/ --keep 14   # nightly, off the cluster
  recast backup --to before.db -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := format(out, "text", "json"); err != nil {
				return err
			}
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
	c.Flags().StringVar(&o.To, "to", "", "`directory`, which ends in / where it is yet to be made, or a file that does not exist (default: roll.etcdSnapshot)")
	c.Flags().IntVar(&o.Keep, "keep", 0, "how many backups of this cluster stay in the directory (default: all)")
	c.Flags().StringVarP(&out, "output", "o", "text", "text or json")
	return c
}
