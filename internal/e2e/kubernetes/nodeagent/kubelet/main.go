// Command kubelet is Kubernetes' kubelet in front of package cri, so that containers are
// processes of this machine. It runs in a mount namespace of its own. Its argument is the
// file with a node.Config.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/cmd/kubelet/app"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/node"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet:", err)
		os.Exit(1)
	}
}

// run returns only if the kubelet can't be started.
func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: kubelet file")
	}
	config, err := node.ReadConfig(args[0])
	if err != nil {
		return err
	}
	credentials, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	if err != nil {
		return err
	}
	// The kubelet links to logs from /var/log/containers. This is a mount namespace of
	// its own, so the machine's /var/log stays as it is.
	if err := syscall.Mount("tmpfs", "/var/log", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount tmpfs to /var/log: %w", err)
	}
	server, err := settings(config)
	if err != nil {
		return err
	}
	deps, err := dependencies(config, credentials)
	if err != nil {
		return err
	}
	if err := app.RunKubelet(ctx, server, deps); err != nil {
		return err
	}
	select {}
}
