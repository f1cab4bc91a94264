package main

import (
	"context"
	"errors"

	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/talos"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/spf13/cobra"
)

func newUpgradeK8sCmd(s *streams, g *globals) *cobra.Command {
	var f struct {
		to     string
		dryRun bool
		yes    bool
		out    string
	}
	c := &cobra.Command{
		Use: "upgrade-k8s", Short: "Upgrade Kubernetes on every node",
		Long: `Upgrade Kubernetes in the whole cluster to the version in --to (default:
kubernetes.version in recast.yaml): kube-apiserver on one control plane after the
other, then kube-controller-manager and kube-scheduler, then kube-proxy, then the
kubelets of all nodes that Kubernetes knows. Each image is changed in the machine
configuration, in the same repository, and must be healthy for roll.settle before
the next one is changed. No machine reboots and no pod is evicted. With a single
control plane, the Kubernetes API is down for a moment.

Before anything restarts, etcd, API servers and nodes must be healthy, every machine
must have pulled its images, and nothing may be in use that the new version removed
(flags, feature gates, admission plugins, API resources). Refused with exit code 4,
with what to do first: more than one minor version at a time, a downgrade, a version
that a node's Talos does not support, a node with a staged or trial configuration, a
control plane without a Node in Kubernetes, and images with vendor tags. A component
that is already set to the new version but is down is waited for.

CoreDNS, flannel and other manifests of Talos are left to talosctl upgrade-k8s; the
report has the command. Safe to run again: it continues where it was interrupted. It
takes the claim of the cluster.`,
		Example: `  recast upgrade-k8s --to v1.36.0 --dry-run   # changes nothing at all
  recast upgrade-k8s --to v1.36.0
  recast upgrade-k8s --yes -o json            # in CI, to kubernetes.version`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				var cl closers
				defer cl.close()
				display, run := s.runner(ctx)
				tell, err := notifier(s, p, &cl)
				if err != nil {
					return err
				}
				rep, err := pipeline.UpgradeKubernetes(ctx, p, m, run, pipeline.UpgradeKubernetesOptions{
					To: f.to, DryRun: f.dryRun, Claim: pipeline.RollOptions{Holder: holder.This(), Dead: holder.Dead, Suspended: holder.Suspended, Notify: tell, Began: shareRuns(ctx, s, p, &cl), MayAsk: s.mayAskUnless(f.yes || f.dryRun, c)},
					Confirm: func(plan kubeupgrade.Plan) (bool, error) {
						defer display.hold()()
						if err := ui.WriteKubernetesPlan(s.err, "text", plan); err != nil {
							return false, err
						}
						ok, err := confirm(ctx, s, question{
							command: typed(c, "--to", plan.To), text: "Upgrade Kubernetes?", untouched: "Kubernetes was not changed",
						}, f.yes)
						if ok {
							// From here on a component may be restarting: the first Ctrl-C waits for it.
							cl.add(s.interrupts.onFirst(display.stops(run), "the component that was changed last is waited for"))
						}
						return ok, err
					},
				})
				display.end()
				if rep.Run != "" || err == nil || f.dryRun && rep.Plan.To != "" {
					return errors.Join(err, answered(ui.WriteKubernetesReport(s.out, f.out, rep)))
				}
				return err
			})
		},
	}
	c.Flags().StringVar(&f.to, "to", "", "Kubernetes `version`, such as v1.36.0 (default: kubernetes.version in recast.yaml)")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "show what would be done and change nothing")
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask; needed where there is no terminal")
	outputFlag(c, &f.out, "text", "json")
	return c
}

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
			return using(s, g, connectTalos, func(p pipeline.Project, t *talos.Client, _ *closers) error {
				res, err := pipeline.Backup(c.Context(), p, t, o, s.say)
				if res.File == "" {
					return err
				}
				return errors.Join(err, ui.WriteBackup(s.out, out, res))
			})
		},
	}
	c.Flags().StringVar(&o.To, "to", "", "`directory` (with a trailing / if it does not exist yet) or a new file (default: roll.etcdSnapshot)")
	c.Flags().IntVar(&o.Keep, "keep", 0, "how many backups of this cluster to keep in the directory (default: all)")
	outputFlag(c, &out, "text", "json")
	return c
}

func newRestoreCmd(s *streams, g *globals) *cobra.Command {
	var f struct {
		node   string
		copied bool
		yes    bool
		out    string
	}
	c := &cobra.Command{
		Use: "restore FILE --node NAME", Short: "Restore a single control plane's etcd from a snapshot",
		Long: `Upload an etcd snapshot to the only control plane of a cluster, whose own etcd data is
lost, make Talos bootstrap from it, and wait until etcd, the Kubernetes API and the
Node are back. All changes in Kubernetes since the snapshot are lost: pods that run on
workers but are not in the snapshot are stopped.

The machine must be up, configured as that control plane with the same secrets as
before, and waiting for a bootstrap: newly installed, or reset with
talosctl reset --system-labels-to-wipe EPHEMERAL --reboot --graceful=false. Before
anything changes, the snapshot is verified (see recast backup) and must come from an
etcd that had this node as a member. Refused with exit code 4 if the machine has etcd
data, if it is not the VM of that node, or unless Talos' discovery knows all other
nodes, as workers.

Safe to run again: it continues where it was interrupted. It takes the claim of the
cluster and needs a talosconfig with the role os:admin.`,
		Example: `  recast restore .recast/etcd/etcd-prod-20261121T040000Z.db --node cp1
  recast restore db --copied --node cp1 --yes   # copied from a member's data directory`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if f.node == "" {
				return errUsage{errors.New("--node is needed: the machine that gets the data")}
			}
			return using(s, g, connectMachines, func(p pipeline.Project, m pipeline.Machines, cl *closers) error {
				ctx := c.Context()
				display, run := s.runner(ctx)
				rep, err := pipeline.Restore(ctx, p, m, run, pipeline.RestoreOptions{
					File: args[0], Node: f.node, Copied: f.copied,
					Confirm: func(rep pipeline.RestoreReport) (bool, error) {
						defer display.hold()()
						return confirmRestore(ctx, s, typed(c, "--node", rep.Node), rep, f.yes)
					},
					Claim: pipeline.RollOptions{Holder: holder.This(), Dead: holder.Dead, Suspended: holder.Suspended, Began: shareRuns(ctx, s, p, cl), MayAsk: s.mayAskUnless(f.yes, c)},
				})
				display.end()
				if rep.Run == "" {
					return err
				}
				return errors.Join(err, answered(ui.WriteRestore(s.out, f.out, rep)))
			})
		},
	}
	c.Flags().StringVar(&f.node, "node", "", "`name` of the control plane")
	c.Flags().BoolVar(&f.copied, "copied", false, "FILE was copied from a member's data directory (member/snap/db) and has no checksum")
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask; needed where there is no terminal")
	outputFlag(c, &f.out, "text", "json")
	return c
}

func confirmRestore(ctx context.Context, s *streams, command string, rep pipeline.RestoreReport, yes bool) (bool, error) {
	if err := ui.WriteRestore(s.err, "text", rep); err != nil {
		return false, err
	}
	q := question{
		command: command,
		text:    "Restore etcd from this, and lose all changes in Kubernetes since?", untouched: "nothing was restored",
	}
	if !rep.Bootstrapped.IsZero() {
		q.text = "Keep waiting?"
	}
	return confirm(ctx, s, q, yes)
}
