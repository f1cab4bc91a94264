package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/expression"
	"github.com/recast-sh/recast/internal/factory"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/imager"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/machineconfig"
	"github.com/recast-sh/recast/internal/notify"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/registry"
	"github.com/recast-sh/recast/internal/talos"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

func (g *globals) open() (pipeline.Project, error) { return g.openWith(false) }

// openWith opens the project; alone is as in config.Options.
func (g *globals) openWith(alone bool) (pipeline.Project, error) {
	c, err := config.Load(g.config, config.Options{Alone: alone, Getenv: os.Getenv, Expr: expression.Check, Template: notify.CheckTemplate})
	if err != nil {
		return pipeline.Project{}, errOpening{err}
	}
	p, err := pipeline.Open(c)
	if err != nil {
		return pipeline.Project{}, errOpening{err}
	}
	return p, nil
}

// closers closes what a command opened, in reverse.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c *closers) close() {
	for _, f := range slices.Backward(*c) {
		_ = f() // connections that only read
	}
}

func connectImages(s *streams, p pipeline.Project, cl *closers) (pipeline.Images, error) {
	s.telemetry.Cluster(p.Config.Cluster)
	f, err := factory.New(factory.Options{
		URL:    p.Config.Images.Factory,
		CAFile: p.Config.Images.CAFile,
		Wrap:   s.telemetry.HTTP("factory"),
		Note:   s.warn,
	})
	if err != nil {
		return pipeline.Images{}, err
	}
	cl.add(f.Close)
	r, err := connectRegistry(s, p, cl)
	if err != nil {
		return pipeline.Images{}, err
	}
	i, err := imager.New(imager.Options{Command: p.Config.Images.Imager.Command, Env: p.Config.Images.Imager.Env, Image: p.Config.Images.Imager.Image})
	if err != nil {
		return pipeline.Images{}, err
	}
	return pipeline.Images{Factory: f, Registry: r, Imager: i, Catalog: r}, nil
}

func connectRegistry(s *streams, p pipeline.Project, cl *closers) (*registry.Client, error) {
	r, err := registry.New(registry.Options{Extensions: p.Config.Images.Extensions + "/extensions", Insecure: p.Config.Images.Insecure, CAFile: p.Config.Images.CAFile, Wrap: s.telemetry.HTTP("registry")})
	if err != nil {
		return nil, err
	}
	cl.add(r.Close)
	return r, nil
}

func connectProxmox(s *streams, p pipeline.Project, cl *closers) (*pve.Client, error) {
	c := p.Config
	s.telemetry.Cluster(c.Cluster)
	px, err := pve.New(api.Options{
		Endpoints: c.Proxmox.Endpoints, Token: cluster.Secret(os.Getenv("PROXMOX_VE_API_TOKEN")),
		Fingerprint: c.Proxmox.Fingerprint, CAFile: c.Proxmox.CAFile, Poll: time.Duration(c.Roll.Poll),
		Wrap: s.telemetry.HTTP("proxmox"),
		Warn: s.warn,
	})
	if err != nil {
		return nil, err
	}
	px.Trust(p.Trust())
	cl.add(func() error { px.Close(); return nil })
	return px, nil
}

// connectMachines makes the clients of Proxmox, Talos and Kubernetes, and finds the machine configurations.
func connectMachines(s *streams, p pipeline.Project, cl *closers) (pipeline.Machines, error) {
	m, err := connectServers(s, p, cl)
	configs, errConfigs := machineConfigs(s, p)
	if err := errors.Join(err, errConfigs); err != nil {
		return pipeline.Machines{}, err
	}
	m.MachineConfig = configs
	return m, nil
}

// connectServers makes the clients of Proxmox, Talos and Kubernetes, for commands that need no machine configurations.
func connectServers(s *streams, p pipeline.Project, cl *closers) (pipeline.Machines, error) {
	px, errProxmox := connectProxmox(s, p, cl)
	t, errTalos := connectTalos(s, p, cl)
	k, errKube := connectKube(s, p, cl)
	if err := errors.Join(errProxmox, errTalos, errKube); err != nil {
		return pipeline.Machines{}, err
	}
	return pipeline.Machines{
		Proxmox: px, Store: px, Talos: t, Maintenance: t, Kube: k, Leases: k, Files: t, Claims: t, Objects: k, Commands: command.FromHere(),
	}, nil
}

func connectTalos(s *streams, p pipeline.Project, cl *closers) (*talos.Client, error) {
	b, err := os.ReadFile(p.Config.Talos.Config)
	if err != nil {
		return nil, fault.WithHint(fault.Credentials.Configf("read the talosconfig: %w", err), "talos.config in recast.yaml, or TALOSCONFIG, names it")
	}
	t, err := talos.New(talos.Options{Talosconfig: b, GRPC: s.telemetry.GRPC("talos")})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Config.Talos.Config, err)
	}
	cl.add(t.Close)
	return t, nil
}

func kubeconfigFile() (string, error) {
	if path := os.Getenv("KUBECONFIG"); path != "" {
		if len(filepath.SplitList(path)) > 1 {
			return "", fault.WithHint(fault.Credentials.Configf("KUBECONFIG names several files"), "recast reads one: export KUBECONFIG with that of this cluster")
		}
		return path, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fault.Credentials.Configf("find the kubeconfig: %w", err)
	}
	return filepath.Join(home, ".kube", "config"), nil
}

func connectKube(s *streams, p pipeline.Project, cl *closers) (*kube.Client, error) {
	path, err := kubeconfigFile()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.WithHint(fault.Credentials.Configf("read the kubeconfig: %w", err), "KUBECONFIG names it; talosctl kubeconfig writes one")
	}
	own, err := cluster.OwnPodFromEnv(os.Getenv)
	if err != nil {
		return nil, err
	}
	k, err := kube.New(b, kube.Options{Poll: time.Duration(p.Config.Roll.Poll), Wrap: s.telemetry.HTTP("kubernetes"), Own: own, Skip: p.Config.Roll.Storage.Off()})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	cl.add(k.Close)
	return k, nil
}

// using opens the project, runs f with the result of connect, and closes everything that connect has opened.
func using[T any](s *streams, g *globals, connect func(*streams, pipeline.Project, *closers) (T, error),
	f func(pipeline.Project, T, *closers) error,
) error {
	p, err := g.open()
	if err != nil {
		return err
	}
	var cl closers
	defer cl.close()
	made, err := connect(s, p, &cl)
	if err != nil {
		return err
	}
	return f(p, made, &cl)
}

// fromKube reads something from Kubernetes. It opens the kubeconfig at the first call.
func fromKube[T any](s *streams, p pipeline.Project, cl *closers, read func(*kube.Client, context.Context) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (none T, err error) {
		k, err := connectKube(s, p, cl)
		if err != nil {
			return none, err
		}
		return read(k, ctx)
	}
}

// machineConfigs returns a function that reads the machine configuration of a node from where the user keeps it; nil
// if only the node has it.
func machineConfigs(s *streams, p pipeline.Project) (func(ctx context.Context, node string) (cluster.Secret, bool, error), error) {
	kept := p.Config.Talos.MachineConfigs
	if !kept.Given() {
		return nil, nil
	}
	o := machineconfig.Options{
		Place: p.Config.Place("talos.machineConfigs") + ": talos.machineConfigs",
		File:  func(node string) string { return kept.File(p.Config.Cluster, node) },
		Dir:   kept.Path, Command: kept.Command, Base: p.Config.Dir, Env: command.FromHere().Env, Pass: kept.Env,
		Note: func(line string) { fmt.Fprintln(s.err, line) },
	}
	if r := kept.Render; r.Given() {
		o.Render = &machineconfig.Render{
			Cluster: p.Config.Cluster, Endpoint: r.Endpoint, Secrets: r.Secrets, Talos: r.Talos, Kubernetes: cmp.Or(r.Kubernetes, p.Config.Kubernetes.Version),
			Installer: "ghcr.io/siderolabs/installer:" + p.Config.Talos.Version, ControlPlanes: r.ControlPlanes, SANs: r.CertSANs, DNSDomain: r.DNSDomain,
			All: r.Patches.All, OfControls: r.Patches.ControlPlanes, OfWorkers: r.Patches.Workers, OfNode: r.Patches.Nodes,
		}
	}
	source, err := machineconfig.New(o)
	if err != nil {
		return nil, err
	}
	return source.Config, nil
}

func (g *globals) withMachines(ctx context.Context, s *streams, f func(context.Context, pipeline.Project, pipeline.Machines) error) error {
	return g.with(ctx, s, connectMachines, f)
}

func (g *globals) with(ctx context.Context, s *streams, connect func(*streams, pipeline.Project, *closers) (pipeline.Machines, error),
	f func(context.Context, pipeline.Project, pipeline.Machines) error,
) error {
	opened := func(s *streams, p pipeline.Project, cl *closers) (pipeline.Machines, error) {
		m, err := connect(s, p, cl)
		if err != nil {
			return m, errOpening{err}
		}
		return m, nil
	}
	return using(s, g, opened, func(p pipeline.Project, m pipeline.Machines, _ *closers) error {
		learnLocks(ctx, s, p)
		return f(ctx, p, m)
	})
}

// connectNotify makes the client of webhooks; nil if none is configured.
func connectNotify(s *streams, p pipeline.Project, cl *closers) (*notify.Client, error) {
	if len(p.Config.Notify) == 0 {
		return nil, nil
	}
	o := notify.Options{Getenv: os.Getenv, Warn: s.warn}
	if u, err := user.Current(); err == nil {
		o.User = u.Username
	}
	for _, w := range p.Config.Notify {
		hook := notify.Webhook{
			URL: w.URL, URLEnv: w.URLEnv, On: w.On, ContentType: w.ContentType, Template: w.Template, CAFile: w.CAFile, Headers: map[string]string{},
		}
		for name, from := range w.Headers {
			hook.Headers[name] = from.Env
		}
		o.Webhooks = append(o.Webhooks, hook)
	}
	c, err := notify.New(o)
	if err != nil {
		return nil, err
	}
	cl.add(c.Close)
	return c, nil
}

// notifier is connectNotify for a run. It warns of webhooks that can't be used.
func notifier(s *streams, p pipeline.Project, cl *closers) (cluster.Notifier, error) {
	c, err := connectNotify(s, p, cl)
	if c == nil || err != nil {
		return nil, err
	}
	for _, state := range c.States() {
		if state.Err != nil {
			fmt.Fprintf(s.err, "warning: %v: this run is not reported to it\n", state.Err)
		}
	}
	return c, nil
}

func webhooks(s *streams, p pipeline.Project, cl *closers) ([]checkup.Webhook, error) {
	c, err := connectNotify(s, p, cl)
	if c == nil || err != nil {
		return nil, err
	}
	return cluster.Each(c.States(), func(state notify.State) checkup.Webhook { return checkup.Webhook(state) }), nil
}
