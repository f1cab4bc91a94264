// Command recast-operator keeps Talos clusters at their lock, as Kubernetes objects: see docs/howto/operator.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // for maintenance windows, wherever it runs

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	managing "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/factory"
	"github.com/recast-sh/recast/internal/operator"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/fleet"
	"github.com/recast-sh/recast/internal/operator/page"
	"github.com/recast-sh/recast/internal/talos"
	"github.com/recast-sh/recast/internal/web/frame"
)

// The linker sets these in a release.
var (
	version = "dev"
	commit  = ""
)

func main() { os.Exit(run(context.Background(), os.Args[1:])) }

func run(ctx context.Context, args []string) int {
	code := 0
	root := newManagerCmd(&managerFlags{pace: operator.DefaultPace})
	root.AddCommand(newAttemptCmd(&code))
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		code = cmp.Or(code, 1)
	}
	return code
}

func versionText() string {
	if commit == "" {
		return version
	}
	return version + " (" + commit + ")"
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s: unexpected argument %q", c.CommandPath(), args[0])
	}
	return nil
}

type managerFlags struct {
	leaderElect     bool
	leaderNamespace string
	metrics, probes string
	pages           string
	image           string
	nodeLabel       string
	namespaces      []string
	allNamespaces   bool
	forbid          []string
	pace            operator.Pace
	lease           time.Duration
}

func newManagerCmd(f *managerFlags) *cobra.Command {
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
	flags.StringVar(&f.nodeLabel, "job-node-label", "node-role.kubernetes.io/control-plane", "label of the nodes that run the Jobs, with any value; empty: all nodes")
	flags.StringSliceVar(&f.namespaces, "namespaces", nil, "namespaces to watch, and to make Jobs in (default: POD_NAMESPACE)")
	flags.BoolVar(&f.allNamespaces, "all-namespaces", false, "watch every namespace, and make Jobs there")
	c.MarkFlagsMutuallyExclusive("namespaces", "all-namespaces")
	flags.StringSliceVar(&f.forbid, "forbid", nil, "fields that no TalosCluster may use: spec.job.image, spec.secrets.envFrom")
	flags.DurationVar(&f.pace.FirstRetry, "retry", f.pace.FirstRetry, "pause before the second attempt of a roll; each further one waits twice as long")
	flags.DurationVar(&f.pace.MaxRetry, "max-retry", f.pace.MaxRetry, "the longest of these pauses")
	flags.DurationVar(&f.pace.Claim, "claim-retry", f.pace.Claim, "pause before the next attempt while another run holds the claim of the cluster")
	flags.DurationVar(&f.pace.Recheck, "recheck", f.pace.Recheck, "pause before a check is repeated that could not read its cluster")
	return c
}

// check also sets what follows from the environment.
func (f *managerFlags) check() error {
	if own := os.Getenv("POD_NAMESPACE"); len(f.namespaces) == 0 && own != "" {
		f.namespaces = []string{own}
	}
	if len(f.namespaces) == 0 && !f.allNamespaces {
		return errors.New("--namespaces, --all-namespaces or POD_NAMESPACE: the operator needs to know where its objects are")
	}
	if f.image == "" {
		return errors.New("--job-image or RECAST_IMAGE: the Jobs need an image, normally that of the operator")
	}
	if f.leaderElect && f.leaderNamespace == "" {
		return errors.New("--leader-election-namespace or POD_NAMESPACE: --leader-elect needs a namespace for its Lease")
	}
	return nil
}

func (f *managerFlags) run(c *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
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
	shared := &operator.Shared{Now: time.Now, Pace: f.pace, Image: f.image, NodeLabel: f.nodeLabel, Forbidden: f.forbid}
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

func (f *managerFlags) options(s *runtime.Scheme) ctrl.Options {
	o := ctrl.Options{
		Scheme:                        s,
		Controller:                    managing.Controller{MaxConcurrentReconciles: atATime},
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
	if !f.allNamespaces {
		o.Cache.DefaultNamespaces = map[string]cache.Config{}
		for _, n := range f.namespaces {
			o.Cache.DefaultNamespaces[strings.TrimSpace(n)] = cache.Config{}
		}
	}
	return o
}

// newAttemptCmd makes the command that the Jobs run. It sets code to recast's exit code.
func newAttemptCmd(code *int) *cobra.Command {
	return &cobra.Command{
		Use: "attempt", Short: "Carry out the task of a Job (the operator makes those)", Hidden: true, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			*code, err = runAttempt(c.Context())
			return err
		},
	}
}

func runAttempt(ctx context.Context) (int, error) {
	task, err := attempt.ReadTask(os.Getenv(attempt.TaskVariable))
	if err != nil {
		return attempt.ExitConfig, err
	}
	own, err := rest.InClusterConfig() // not KUBECONFIG, which is for the cluster that is rolled
	if err != nil {
		return attempt.ExitFailed, err
	}
	const answers = 20 * time.Second
	own.Timeout = answers
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		return attempt.ExitFailed, err
	}
	api, err := client.New(own, client.Options{Scheme: s})
	if err != nil {
		return attempt.ExitFailed, fmt.Errorf("reach the Kubernetes API: %w", err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	const patience = 5 * time.Minute
	a := &attempt.Attempt{
		Task:      task,
		Recast:    attempt.Recast{Binary: "/usr/bin/recast", Dir: attempt.WorkDir, Log: os.Stderr, Signals: signals},
		Reporter:  attempt.Reporter{Client: api, Log: os.Stderr, Patient: patience},
		Available: available,
		Now:       metav1.Now,
	}
	return a.Run(ctx)
}

// available asks the Image Factory of a recast.yaml for the newest release of Talos, and Talos' table for the next
// Kubernetes. A version that can't be found out is "": both are only for people to know.
func available(ctx context.Context, file, talosVersion, kubernetesVersion string) (newTalos, newKubernetes string) {
	newKubernetes = talos.NextKubernetes(talosVersion, kubernetesVersion)
	c, err := config.Load(file, config.Options{Getenv: os.Getenv})
	if err != nil {
		return "", newKubernetes
	}
	f, err := factory.New(factory.Options{URL: c.Images.Factory, CAFile: c.Images.CAFile})
	if err != nil {
		return "", newKubernetes
	}
	defer f.Close()
	const soon = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	versions, err := f.Versions(ctx)
	if err != nil {
		return "", newKubernetes
	}
	return talos.NewestRelease(versions), newKubernetes
}
