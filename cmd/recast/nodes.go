package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/adminconfig"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/machineconfig"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/talos"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/configs"
	"github.com/recast-sh/recast/pipeline/rebuild"
)

func newBootstrapCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	c := &cobra.Command{
		Use: "bootstrap CONTROL-PLANE", Short: "Make a whole cluster from nothing",
		Long: `Make the cluster that recast.yaml describes, from nothing: recast init --new writes one.
Images are built and published, and the VM of the named control plane is made: it
installs Talos, gets its configuration, and etcd begins on it. Then all other nodes are
made, side by side within roll.maxUnavailable.perHost.

etcd begins exactly once, on that one machine, and only if there is nothing of the
cluster yet: no VM with a node's name or number, no machine at a node's address, no
parked disk, no other machine in Talos' discovery, no answer from its Kubernetes API.

The talosconfig (talos.config in recast.yaml, else TALOSCONFIG, else ~/.talos/config)
and the kubeconfig (KUBECONFIG, else ~/.kube/config) are made from the configuration of
that control plane, readable only for you. Files that are there already stay, and must
be of this cluster.

Safe to run again: an interrupted bootstrap continues, here or on another
machine. Where there is a cluster already, its missing nodes are made, and nothing else
is changed.`,
		Example: `  recast init --new
  recast bootstrap cp1`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := makeCredentials(c.Context(), s, g, args[0]); err != nil {
				return errOpening{err}
			}
			return f.withImages(c, s, g, func(ctx context.Context, p pipeline.Project, images pipeline.Images, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				return pipeline.Bootstrap(ctx, p, images, m, run, o, args[0])
			})
		},
	}
	f.add(c)
	return c
}

// makeCredentials makes the talosconfig and the kubeconfig of a cluster that begins with the node first. Files that
// exist already must be of the same cluster, and stay.
func makeCredentials(ctx context.Context, s *streams, g *globals, first string) error {
	p, err := g.open()
	if err != nil {
		return err
	}
	read, err := machineConfigs(s, p)
	if err != nil {
		return err
	}
	text, endpoints, err := configs.Begin(ctx, p, read, first)
	if err != nil {
		return err
	}
	made, err := adminconfig.Of(p.Config.Cluster, text, endpoints)
	if err != nil {
		return err
	}
	kubeconfig, err := kubeconfigFile()
	if err != nil {
		return err
	}
	return errors.Join(
		s.makeCredential(p.Config.Talos.Config, made.Talosconfig, made.IsTalosconfig, "talos.config in recast.yaml, or TALOSCONFIG, names another file for it"),
		s.makeCredential(kubeconfig, made.Kubeconfig, made.IsKubeconfig, "KUBECONFIG names another file for it: export KUBECONFIG=$PWD/kubeconfig"),
	)
}

// makeCredential writes a file that only its owner may read. A file of the same cluster stays; a file of another
// cluster is an error.
func (s *streams) makeCredential(path string, content cluster.Secret, isOurs func([]byte) (bool, error), elsewhere string) error {
	there, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = savefile.Write(path, func(w io.Writer) error { _, err := w.Write(content); return err })
		}
		if err == nil {
			s.say("wrote " + path + ", which gives access to the whole cluster")
		}
		return fault.As(fault.Config, err)
	case err != nil:
		return fault.Credentials.Configf("%w", err)
	}
	switch ours, err := isOurs(there); {
	case err != nil:
		return fault.Credentials.Configf("read %s: %w", path, err)
	case !ours:
		return fault.WithHint(fault.Credentials.Of(fault.As(fault.Config, fmt.Errorf("%s is of another cluster", path))), "%s", elsewhere)
	}
	return nil
}

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

Safe to run again: with the same snapshot it continues where it was interrupted, here or
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
			return f.withImages(c, s, g, func(ctx context.Context, p pipeline.Project, images pipeline.Images, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				return rebuild.Rebuild(ctx, p, images, m, run, o, of)
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&of.File, "from", "", "`file` with the snapshot of etcd")
	c.Flags().BoolVar(&of.Copied, "copied", false, "the file was copied from a member's data directory (member/snap/db) and has no checksum")
	return c
}

func newRemoveCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	var free string
	c := &cobra.Command{
		Use: "remove NODE", Short: "Take a node away; its disks stay parked",
		Long: `Take a node away for good: gates, drain, leave etcd, stop, park all its disks, delete
its VM, delete its Node. This is the only way by which recast lets a node go: a line
that is gone from recast.yaml changes nothing. Take the line out afterwards.

All its disks stay on its parking VM: recast status lists them, and recast prune leaves
them alone. recast remove NODE --free NODE frees them, once the node is gone or was made
again: that can't be undone. Of a node with surge: true only the system disk exists,
and that is freed at once, unless it has data that only it has.

The last control plane is refused. Of three, remove two to come to one: with two, etcd
survives the loss of neither. An interrupted removal continues with the same
command, or with recast roll; recast undo NODE cancels it.`,
		Example: `  recast remove wk3
  recast status                        # its disks
  recast remove wk3 --free wk3         # gone for good`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case !c.Flags().Changed("free"):
			case free != args[0]:
				return errUsage{errors.New("--free takes the node's name once more: its disks are deleted for good")}
			default:
				return runPrune(c, s, g, pipeline.PruneOptions{Removed: free}, f.yes, f.out)
			}
			return f.withRun(c, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				return pipeline.Remove(ctx, p, m, run, o, args[0])
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&free, "free", "", "free the disks of a node that was removed: its `name` once more")
	return c
}

func newUndoCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	var u undoFlags
	c := &cobra.Command{
		Use: "undo [NODE...]", Short: "Undo the last roll, or cancel an unfinished one",
		Long: `Undo what the last run did to a node: if its replacement is unfinished, cancel it and
put the old system disk back; if it is finished, boot the system disk that it had before.
The plan says which of the two it is, and asks. No disk is freed by either, so undo can be
undone.

Without NODE it is about the unfinished node, or else about the nodes of the last run
that replaced a system disk: it says first which run that is. --run names another. With
--yes and without a terminal, name the nodes or the run.

NODE --cancel does only the first: stop the new VM, park its new system disk, give every
disk back, and boot from the old system disk. It needs neither the machine configuration
nor the journal of the interrupted roll, so it works from any machine. Afterwards the node
is as stale as before. The new disk stays parked and is marked as cancelled: recast prune
frees it, or the end of the node's next recreate or reimage. A VM that was being reshaped
gets its old settings back, and a removal is cancelled.

--previous does only the second, for nodes, or with --all for every node that has a parked
system disk: exchange the system disk for the one that was parked, and park the current
one. This works only while the old system still fits: its machine configuration and
Kubernetes version are unchanged, and, for a control plane, etcd's minor version is
unchanged and the old disk holds no etcd data because the member had left. The refusal
says what does not fit.

As in a roll, the plan names data that only the present system disk has, and without
acceptLoss it is refused. Upgrades in place replace no system disk: there the way back
is a roll to the previous lock (git checkout COMMIT -- recast.yaml recast.lock
schematics/), which is also what keeps the next roll from going forward again.`,
		Example: `  recast undo wk1
  recast undo                  # what the last roll did
  recast undo --run 3f2a --yes # recast history lists the runs
  recast undo wk1 --cancel     # never more than an unfinished replacement
  recast undo --previous --all`,
		ValidArgsFunction: g.completeNodes,
		RunE: func(c *cobra.Command, args []string) error {
			if err := u.check(args, f.yes && s.unasked() != ""); err != nil {
				return err
			}
			f.policy.Only = args
			if u.unnamed(args) {
				f.again = func(plan planning.Plan) []string {
					return cluster.Each(plan.Work(), func(n planning.NodePlan) string { return n.Node })
				}
			}
			return f.withRun(c, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				o.Undo = planning.Undone{Way: u.way(), Run: u.run}
				return pipeline.Undo(ctx, p, m, run, o)
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&u.run, "run", "", "undo the run with this `ID`, or a part of it")
	c.Flags().BoolVar(&u.cancel, "cancel", false, "only cancel the unfinished replacement of NODE")
	c.Flags().BoolVar(&u.previous, "previous", false, "only boot the system disks that finished replacements have parked")
	c.Flags().BoolVar(&u.all, "all", false, "with --previous: every node that has a parked system disk")
	c.Flags().BoolVar(&f.policy.AcceptOutage, "accept-outage", false, "with two control planes: accept that etcd and the Kubernetes API are down during the rollback")
	return c
}

type undoFlags struct {
	run                   string
	cancel, previous, all bool
}

// unnamed says whether only the plan shows which nodes are meant.
func (u undoFlags) unnamed(nodes []string) bool { return len(nodes) == 0 && u.run == "" && !u.all }

func (u undoFlags) way() planning.Way {
	switch {
	case u.cancel:
		return planning.Cancel
	case u.previous:
		return planning.Previous
	}
	return ""
}

// check refuses flags and arguments that do not fit together. blind: --yes was given, so nobody sees the plan.
func (u undoFlags) check(nodes []string, blind bool) error {
	wrong := func(why, hint string) error { return fault.WithHint(errUsage{errors.New(why)}, "%s", hint) }
	const cancel, previous = "recast undo NODE --cancel", "recast undo NODE... --previous, or recast undo --previous --all"
	switch {
	case u.cancel && u.previous:
		return wrong("--cancel is about an unfinished replacement, --previous about a finished one: choose one, or leave both out", "recast undo NODE does what applies")
	case u.cancel && u.run != "":
		return wrong("--cancel takes the name of a node, and --run names a run: choose one", cancel)
	case u.cancel && u.all, u.cancel && len(nodes) != 1:
		return wrong("--cancel takes the name of one node", cancel)
	case u.previous && u.run != "":
		return wrong("--previous takes the names of nodes, and --run names a run: choose one", previous)
	case u.previous && u.all && len(nodes) > 0:
		return wrong("--previous takes the names of nodes or --all: choose one", previous)
	case u.previous && !u.all && len(nodes) == 0:
		return wrong("--previous takes the names of nodes, or --all", previous)
	case u.all && !u.previous:
		return wrong("--all means every node that has a parked system disk, and needs --previous", "recast undo --previous --all")
	case len(nodes) > 0 && u.run != "":
		return wrong("arguments name nodes, --run names a run with all its nodes: choose one", "recast undo NODE..., or recast undo --run ID")
	case u.unnamed(nodes) && blind:
		return wrong("recast undo --yes without a terminal needs the names of nodes, or --run with the ID of a run: nobody sees which run that is",
			"recast history lists the runs, recast status what is unfinished")
	}
	return nil
}

func newConfigCmd(s *streams, g *globals) *cobra.Command {
	c := &cobra.Command{
		Use: "config", Short: "Compare and show machine configurations",
		Long: `Compare the machine configurations in talos.machineConfigs with those that the nodes
run, and show either. Nothing is changed, and no secret is shown unless you ask for it.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newConfigDiffCmd(s, g), newConfigShowCmd(s, g), newConfigRenderCmd(s, g))
	return c
}

func newConfigDiffCmd(s *streams, g *globals) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "diff [NODE...]", Short: "Show how configurations differ from what nodes run",
		Long: `Compare each node's configuration in talos.machineConfigs with the one that it runs,
document by document and field by field. What recast sets itself is left out: the
installer, the install disk, the hostname, and the versions of Kubernetes. Secrets are
compared, and shown as changed, but their values are not shown. Where a machine has no
configuration, because it is new or was reset, it says as recast plan does whether the
file is of another node or another cluster.

Exits 0 if nothing differs, 2 if something does, and 1 if a node's configuration could
not be compared. It needs a talosconfig with the role os:admin.`,
		Example: `  recast config diff
  recast config diff wk1 -o json`,
		RunE: func(c *cobra.Command, nodes []string) error {
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				res, err := configs.Compare(ctx, p, m, nodes...)
				if err != nil {
					return err
				}
				err = ui.WriteConfigDiffs(s.out, out, res)
				switch {
				case res.Unread > 0:
					return cmp.Or(err, fault.WithHint(fault.Unread.Of(errUnread), "the reasons are in the answer above"))
				case res.Differ > 0:
					return cmp.Or(err, errDiffers)
				}
				return err
			})
		},
	}
	outputFlag(c, &out, "text", "json")
	return c
}

func newConfigShowCmd(s *streams, g *globals) *cobra.Command {
	var wanted, secrets bool
	c := &cobra.Command{
		Use: "show NODE", Short: "Show the configuration that a node runs",
		Long: `Show the machine configuration that a node runs, as YAML, or with --wanted the one that
talos.machineConfigs has for it, which needs no access to the cluster. Secrets are
replaced by "[redacted value]", and comments are left out; --secrets shows it as it is,
on a terminal only.

What a node runs is read with a talosconfig with the role os:admin.`,
		Example: `  recast config show wk1
  recast config show wk1 --wanted`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, node []string) error {
			if secrets && !ui.IsTerminal(s.out) {
				return errUsage{errors.New("--secrets shows secrets on a terminal only: recast config render writes them to a file")}
			}
			read, err := g.configs(c.Context(), s, !wanted, node)
			if err != nil {
				return err
			}
			text, err := shownConfig(read[0], secrets)
			if err != nil {
				return err
			}
			_, err = s.out.Write(text)
			return err
		},
	}
	c.Flags().BoolVar(&wanted, "wanted", false, "show what talos.machineConfigs has for the node")
	c.Flags().BoolVar(&secrets, "secrets", false, "show secrets, on a terminal only")
	return c
}

func newConfigRenderCmd(s *streams, g *globals) *cobra.Command {
	var to string
	var running, secrets, encrypt bool
	c := &cobra.Command{
		Use: "render [NODE...]", Short: "Write configurations to files",
		Long: `Write each node's configuration in talos.machineConfigs, decrypted, to NODE.yaml in a
directory, which needs no access to the cluster; or with --running the one that the node
runs, to begin with. Secrets are replaced by "[redacted value]", for a review; --encrypt
writes what sops makes of them, by the rules in your .sops.yaml, and nothing in the clear;
--secrets writes them as they are. --running needs one of these two. recast decrypts what
sops or age encrypted.

Only you can read the files. No existing file is overwritten.`,
		Example: `  recast config render --to /tmp/review
  recast config render --to machine --running --encrypt`,
		RunE: func(c *cobra.Command, nodes []string) error {
			switch {
			case to == "":
				return errUsage{errors.New("--to names the directory for the files")}
			case encrypt && secrets:
				return errUsage{errors.New("--encrypt and --secrets exclude each other")}
			case running && !encrypt && !secrets:
				return errUsage{fault.WithHint(errors.New("--running writes the files that talos.machineConfigs is to name, and a node can't run one whose secrets are replaced by \"[redacted value]\""),
					"--encrypt writes them encrypted by sops, --secrets as they are; recast config show NODE shows one without secrets")}
			}
			read, err := g.configs(c.Context(), s, running, nodes)
			if err != nil {
				return err
			}
			text := func(c configs.Config) ([]byte, error) { return shownConfig(c, secrets) }
			if encrypt {
				text = encrypted(c.Context(), s, to)
			}
			return renderConfigs(s, to, secrets, read, text)
		},
	}
	c.Flags().StringVar(&to, "to", "", "`directory` for the files")
	c.Flags().BoolVar(&running, "running", false, "write what the nodes run")
	c.Flags().BoolVar(&encrypt, "encrypt", false, "write them encrypted by sops")
	c.Flags().BoolVar(&secrets, "secrets", false, "write secrets as they are")
	return c
}

// configs reads what nodes run, or what talos.machineConfigs has for them.
func (g *globals) configs(ctx context.Context, s *streams, running bool, nodes []string) (read []configs.Config, err error) {
	if running {
		err = g.with(ctx, s, connectServers, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
			read, err = configs.Running(ctx, p, m, nodes...)
			return err
		})
		return read, err
	}
	p, err := g.open()
	if err != nil {
		return nil, err
	}
	source, err := machineConfigs(s, p)
	if err != nil {
		return nil, err
	}
	return configs.Wanted(ctx, p, source, nodes...)
}

// renderConfigs writes the result of text to a file for each node, and follows no link. First it checks that none of the files exists and
// that text succeeds for every node; where secrets are written as they are, also that the directory is the user's own.
func renderConfigs(s *streams, dir string, secrets bool, all []configs.Config, text func(configs.Config) ([]byte, error)) error {
	path := func(c configs.Config) string { return filepath.Join(dir, c.Node+".yaml") }
	for _, c := range all {
		if _, err := os.Lstat(path(c)); !errors.Is(err, fs.ErrNotExist) {
			return fault.WithHint(cmp.Or(err, fault.Configf("%s already exists", path(c))), "name another directory with --to, or remove the file")
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(filepath.Clean(dir))
	if err == nil && secrets {
		err = journal.CheckOwner(dir, info)
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	texts := make([][]byte, len(all))
	for i, c := range all {
		var err error
		if texts[i], err = text(c); err != nil {
			return err
		}
	}
	for i, c := range all {
		if err := writeNew(root, c.Node+".yaml", texts[i]); err != nil {
			return err
		}
		fmt.Fprintln(s.out, path(c))
	}
	return nil
}

// writeNew writes a file that does not exist, completely or not at all. A link in its place is an error, wherever it leads.
func writeNew(root *os.Root, name string, text []byte) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, root.Remove(name))
	}
	return nil
}

// encrypted returns a function that makes the text of a node's file in dir, encrypted as sops does it there.
func encrypted(ctx context.Context, s *streams, dir string) func(configs.Config) ([]byte, error) {
	return func(c configs.Config) ([]byte, error) {
		path, err := filepath.Abs(filepath.Join(dir, c.Node+".yaml"))
		if err != nil {
			return nil, err
		}
		o := machineconfig.Options{Base: filepath.Dir(path), Env: os.Environ(), Note: func(line string) { fmt.Fprintln(s.err, line) }}
		return o.Encrypt(ctx, path, c.Text)
	}
}

func shownConfig(c configs.Config, secrets bool) ([]byte, error) {
	if secrets {
		return c.Text, nil
	}
	text, err := configs.Shown(c.Text)
	return text, fault.Prefix("node "+c.Node, err)
}

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
