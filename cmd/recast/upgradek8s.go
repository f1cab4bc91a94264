package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
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
				display := s.displaySteps(ctx)
				run := &step.Runner{Emit: display.Emit}
				s.telemetry.Watch(run)
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
