package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/factory"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/talos"
)

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
