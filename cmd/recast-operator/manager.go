package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator"
	"github.com/recast-sh/recast/internal/operator/fleet"
	"github.com/recast-sh/recast/internal/operator/page"
	"github.com/recast-sh/recast/internal/web/frame"
)

type managerFlags struct {
	leaderElect     bool
	leaderNamespace string
	metrics, probes string
	pages           string
	image           string
	namespaces      []string
	pace            operator.Pace
	lease           time.Duration
}

func newManagerCmd() *cobra.Command {
	f := managerFlags{pace: operator.DefaultPace}
	c := &cobra.Command{
		Use: "recast-operator", Short: "Keep Talos clusters at their lock, as Kubernetes objects", Version: versionText(),
		Long: `Watch TalosClusters, ImageRolls and FleetRolls (recast.dev/v1alpha1), and run recast in Jobs:
a check by schedule and when something changes, a plan of what has drifted, and, once it is
approved and a maintenance window is open, the roll. State is in the objects alone: the
operator may be killed and restarted at any time, and so may a Job.

recast operator manifests prints what installs it. Its pages show the fleet and change nothing:
kubectl -n recast-system port-forward deployment/recast-operator 8082, and http://localhost:8082
in a browser.`,
		Args: noArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	flags := c.Flags()
	flags.BoolVar(&f.leaderElect, "leader-elect", false, "run as one of several replicas, of which one works at a time")
	flags.StringVar(&f.leaderNamespace, "leader-election-namespace", os.Getenv("POD_NAMESPACE"), "namespace of the Lease (default: POD_NAMESPACE)")
	flags.DurationVar(&f.lease, "leader-election-lease", 15*time.Second, "how long a leader that says nothing keeps its place")
	flags.StringVar(&f.metrics, "metrics-bind-address", ":8080", "address of the metrics; 0: none")
	flags.StringVar(&f.probes, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0: none")
	flags.StringVar(&f.pages, "pages-bind-address", "127.0.0.1:8082", "address of the pages for kubectl port-forward, of this host only; 0: none")
	flags.StringVar(&f.image, "job-image", os.Getenv("RECAST_IMAGE"), "image of the Jobs (default: RECAST_IMAGE)")
	flags.StringSliceVar(&f.namespaces, "namespaces", nil, "namespaces to watch (default: all)")
	flags.DurationVar(&f.pace.FirstRetry, "retry", f.pace.FirstRetry, "pause before the second attempt of a roll; each further one waits twice as long")
	flags.DurationVar(&f.pace.MaxRetry, "max-retry", f.pace.MaxRetry, "the longest of these pauses")
	flags.DurationVar(&f.pace.Claim, "claim-retry", f.pace.Claim, "pause before the next attempt while another run holds the claim of the cluster")
	flags.DurationVar(&f.pace.Recheck, "recheck", f.pace.Recheck, "pause before a check is repeated that could not read its cluster")
	return c
}

func (f managerFlags) run(c *cobra.Command) error {
	if f.image == "" {
		return errors.New("--job-image or RECAST_IMAGE: the Jobs need an image, normally that of the operator")
	}
	if f.leaderElect && f.leaderNamespace == "" {
		return errors.New("--leader-election-namespace or POD_NAMESPACE: --leader-elect needs a namespace for its Lease")
	}
	pages, err := pagesAddress(f.pages)
	if err != nil {
		return err
	}
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(c.ErrOrStderr(), nil)))
	ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	rest, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(rest, f.options(s))
	if err != nil {
		return err
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return err
	}
	shared := &operator.Shared{Now: time.Now, Pace: f.pace, Image: f.image}
	if err := operator.Setup(ctx, mgr, shared); err != nil {
		return err
	}
	if err := (&fleet.Reconciler{Clock: time.Now}).SetupWithManager(mgr); err != nil {
		return err
	}
	if err := metrics.Registry.Register(operator.Metrics{Objects: mgr.GetClient(), Context: ctx}); err != nil {
		return err
	}
	if pages.IsValid() {
		site, err := page.New(mgr.GetClient(), pages, versionText())
		if err == nil {
			err = mgr.Add(site)
		}
		if err != nil {
			return err
		}
	}
	return mgr.Start(ctx)
}

// pagesAddress reads an address; the zero address: there are no pages.
func pagesAddress(flag string) (netip.AddrPort, error) {
	if flag == "0" {
		return netip.AddrPort{}, nil
	}
	address, err := frame.Local(flag)
	if err != nil {
		err = fmt.Errorf("--pages-bind-address %w; 0 switches them off", err)
	}
	return address, err
}

// atATime is how many objects of one kind are reconciled at the same time. Almost all of that time is waiting for the
// API server, and many clusters may be due at the same minute.
const atATime = 8

func (f managerFlags) options(s *runtime.Scheme) ctrl.Options {
	o := ctrl.Options{
		Scheme:                        s,
		Controller:                    config.Controller{MaxConcurrentReconciles: atATime},
		Metrics:                       server.Options{BindAddress: f.metrics},
		HealthProbeBindAddress:        f.probes,
		LeaderElection:                f.leaderElect,
		LeaderElectionID:              "recast-operator",
		LeaderElectionNamespace:       f.leaderNamespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 new(f.lease),
		RenewDeadline:                 new(f.lease * 2 / 3),
		RetryPeriod:                   new(f.lease / 8),
		Cache:                         operator.Cached(),
		Client:                        client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.Pod{}}}},
	}
	if len(f.namespaces) > 0 {
		o.Cache.DefaultNamespaces = map[string]cache.Config{}
		for _, n := range f.namespaces {
			o.Cache.DefaultNamespaces[strings.TrimSpace(n)] = cache.Config{}
		}
	}
	return o
}
