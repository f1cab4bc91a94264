package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/machineconfig"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline/setup"
)

// newFlags are the flags of recast init --new.
type newFlags struct {
	setup.NewOptions
	controlPlanes, workers int
	names                  []string // of these flags
}

// onlyFound are the flags of init that are for a cluster that is there.
var onlyFound = []string{"talosconfig", "exclude"}

func (n *newFlags) register(c *cobra.Command) {
	usage := func(name, text string) string {
		n.names = append(n.names, name)
		return "--new: " + text
	}
	text := func(to *string, name, value, what string) { c.Flags().StringVar(to, name, value, usage(name, what)) }
	list := func(to *[]string, name, what string) { c.Flags().StringSliceVar(to, name, nil, usage(name, what)) }
	number := func(to *int, name string, value int, what string) {
		c.Flags().IntVar(to, name, value, usage(name, what))
	}
	number(&n.controlPlanes, "control-planes", 1, "`number` of control planes")
	number(&n.workers, "workers", 2, "`number` of workers")
	text(&n.Prefix, "prefix", "", "`text` before the nodes' names: prod- for prod-cp1 and prod-wk1 (default: none)")
	list(&n.Addresses, "addresses", "`addresses` of the nodes, control planes first: 10.0.0.11/24, or 10.0.0.11-10.0.0.18/24 for several in a row")
	text(&n.Gateway, "gateway", "", "`address` of the nodes' gateway")
	text(&n.VIP, "vip", "", "unused `address` that the control planes share, for the Kubernetes API")
	text(&n.Endpoint, "kubernetes-endpoint", "", "`URL` of the Kubernetes API, such as that of a load balancer (default: port 6443 of --vip, or of the only control plane)")
	text(&n.Kubernetes, "kubernetes-version", "", "`version` of Kubernetes (default: the newest that this recast knows)")
	list(&n.Hosts, "host", "Proxmox `nodes` that the VMs are spread over (default: all that are online)")
	text(&n.Storage, "storage", "", "Proxmox `storage` for the disks (default: the only one that accepts disks)")
	text(&n.Bridge, "bridge", "vmbr0", "`bridge` of the network cards")
	number(&n.Cores, "cores", 2, "`number` of processors of each VM")
	text(&n.Memory, "memory", "4G", "`size` of each VM's memory: 4G, or 4096 in MiB")
	text(&n.SystemDisk, "system-disk", "20G", "`size` of each system disk")
	text(&n.DataDisk, "data-disk", "", "`size` of a persistent disk of each worker (default: none)")
	list(&n.Install, "install", "official `extensions` in the image besides qemu-guest-agent, such as iscsi-tools")
	list(&n.Age, "age", "`recipients` for whom age encrypts the secrets (default: as the rules of your .sops.yaml say)")
}

// check refuses flags that are not for this init, and takes note of the numbers that were given.
func (n *newFlags) check(c *cobra.Command, fresh bool) error {
	others, why := n.names, "is for a cluster that --new makes"
	if fresh {
		others, why = onlyFound, "is for a cluster that is there already, and --new for one that is not"
	}
	for _, name := range others {
		if c.Flags().Changed(name) {
			return errUsage{fmt.Errorf("--%s %s", name, why)}
		}
	}
	if c.Flags().Changed("control-planes") {
		n.ControlPlanes = &n.controlPlanes
	}
	if c.Flags().Changed("workers") {
		n.Workers = &n.workers
	}
	return nil
}

// runNew writes what a cluster from nothing is made of.
func (f *initFlags) runNew(ctx context.Context, s *streams) error {
	if err := setup.VacantNew(f.Dir, f.Force); err != nil {
		return err
	}
	var cl closers
	defer cl.close()
	ask := newAsker(s, f.yes)
	p, err := f.project(ctx, ask)
	if err != nil {
		return err
	}
	px, err := f.trusted(ctx, s, p, ask, &cl)
	if err != nil {
		return err
	}
	if err := f.relative(filepath.Join(f.Dir, "talosconfig")); err != nil {
		return err
	}
	src := f.sources(s, ask, &cl)
	src.Proxmox = px
	res, err := setup.New(ctx, src, setup.NewSources{
		Talos: machineconfig.NewestTalos(), Kubernetes: machineconfig.KubernetesFor, Secrets: machineconfig.NewSecrets,
		Protect: func(ctx context.Context, path string, age []string, text cluster.Secret) ([]byte, string, error) {
			o := machineconfig.Options{Base: filepath.Dir(path), Env: command.FromHere().Env, Note: s.say}
			return o.Protect(ctx, path, age, text)
		},
	}, f.InitOptions, f.made.NewOptions)
	if err != nil {
		return err
	}
	return ui.WriteInit(s.out, f.out, res)
}
