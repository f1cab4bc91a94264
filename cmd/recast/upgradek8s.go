package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster/kubeupgrade"
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
		Use: "upgrade-k8s", Short: "Bring Kubernetes to another version, on every node",
		Long: `Bring the Kubernetes of the whole cluster to the version that --to or, without it,
kubernetes.version in recast.yaml names: kube-apiserver on one control plane after
the other, then kube-controller-manager and kube-scheduler, then kube-proxy, then
the kubelets of all nodes that Kubernetes knows. Each is changed in the machine
configuration, whose repositories stay, and must be healthy for roll.settle before
the next one is touched. No machine reboots and no pod is evicted; where there is
one control plane, the Kubernetes API is away for a moment.

Before anything restarts: etcd, API servers and nodes must be healthy, every machine
has fetched its images, and nothing may be in use that the new version has removed
(flags, feature gates, admission plugins, API resources). Refused with exit code 4:
more than one minor version at a time, going back, what the Talos of a node does not
support, a node with a staged or tried configuration, a control plane that Kubernetes
has no node of, and images with a vendor's own tags, with what to do first. A
component that is set to run in that version and is down is waited for.

CoreDNS, flannel and other manifests of Talos are left to talosctl upgrade-k8s; the
report has the command. Safe to run again: whatever was cut off goes on. It takes the
claim of the cluster.`,
		Example: `  recast upgrade-k8s --to v1.36.0 --dry-run   # changes nothing at all
  recast upgrade-k8s --to v1.36.0
  recast upgrade-k8s --yes -o json            # in CI, to kubernetes.version`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := format(f.out, "text", "json"); err != nil {
				return err
			}
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				var cl closers
				defer cl.close()
				told := s.story(ctx)
				run := &step.Runner{Emit: told.Emit}
				s.telemetry.Watch(run)
				tell, err := notifier(s, p, &cl)
				if err != nil {
					return err
				}
				rep, err := pipeline.UpgradeKubernetes(ctx, p, m, run, pipeline.UpgradeKubernetesOptions{
					To: f.to, DryRun: f.dryRun, Claim: pipeline.RollOptions{Holder: holder(), Dead: dead, Notify: tell, Began: s.telemetry.Began},
					Confirm: func(plan kubeupgrade.Plan) (bool, error) {
						defer told.hold()()
						if err := ui.WriteKubernetesPlan(s.err, "text", plan); err != nil {
							return false, err
						}
						ok, err := confirm(ctx, s, question{
							command: "recast upgrade-k8s --to " + plan.To, text: "Upgrade Kubernetes?", untouched: "Kubernetes is as it was",
						}, f.yes)
						if ok {
							// From here on a component may be restarting: the first Ctrl-C lets it come up.
							cl.add(s.interrupts.onFirst(told.stops(run), "the component that was changed last comes up first"))
						}
						return ok, err
					},
				})
				told.end()
				if rep.Run != "" || err == nil || f.dryRun && rep.Plan.To != "" {
					return errors.Join(err, answered(ui.WriteKubernetesReport(s.out, f.out, rep)))
				}
				return err
			})
		},
	}
	c.Flags().StringVar(&f.to, "to", "", "`version` of Kubernetes, such as v1.36.0 (default: kubernetes.version in recast.yaml)")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "show what would be done, and change nothing")
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask; needed where there is no terminal")
	c.Flags().StringVarP(&f.out, "output", "o", "text", "`format` of the report: text or json")
	return c
}
