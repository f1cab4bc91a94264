package simtest

import (
	"cmp"
	"context"
	"net/http"
	"path/filepath"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/factory"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/machineconfig"
	"github.com/recast-sh/recast/internal/registry"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/setup"
)

// Init is recast init --yes in dir, by a user with the lab's talosconfig, its kubeconfig
// and the client's token, who trusts the certificate. Afterwards dir is the client's
// working directory.
func (c *Client) Init(ctx context.Context, dir string, o setup.InitOptions) (setup.InitResult, error) {
	s := &session{project: pipeline.Project{Config: &config.Config{}}}
	defer s.end()
	s.project.Config.Proxmox.Endpoints, s.project.Config.Proxmox.Fingerprint = c.lab.Endpoints(), c.lab.Fingerprint()
	if err := c.connectMachines(s); err != nil {
		return setup.InitResult{}, err
	}
	src := c.initSources(s, dir)
	src.Talos, src.Addrs, src.Kube = s.talos, s.talos.Addrs(), s.machines.Kube
	o.Dir, o.Context = dir, s.talos.Context()
	o.TalosConfig = filepath.Join(c.lab.Dir, "talosconfig")
	o.Endpoints, o.Fingerprint, o.Extensions = c.lab.Endpoints(), c.lab.Fingerprint(), c.lab.Extensions()
	return checked[setup.InitResult](c.lab)(setup.Init(ctx, src, o))
}

// InitNew is recast init --new --yes in dir, by a user with the client's token, who trusts the
// certificate. Nothing encrypts the secrets.
func (c *Client) InitNew(ctx context.Context, dir string, o setup.InitOptions, n setup.NewOptions) (setup.InitResult, error) {
	s := &session{project: pipeline.Project{Config: &config.Config{}}}
	defer s.end()
	s.project.Config.Proxmox.Endpoints, s.project.Config.Proxmox.Fingerprint = c.lab.Endpoints(), c.lab.Fingerprint()
	if err := c.connectMachines(s); err != nil {
		return setup.InitResult{}, err
	}
	labs, err := config.Load(filepath.Join(c.lab.Dir, "recast.yaml"), config.Options{})
	if err != nil {
		return setup.InitResult{}, err
	}
	o.Dir, o.Endpoints, o.Fingerprint, o.Extensions, o.Factory = dir, c.lab.Endpoints(), c.lab.Fingerprint(), labs.Images.Extensions, labs.Images.Factory
	n.Bridge, n.Cores, n.Memory, n.SystemDisk = cmp.Or(n.Bridge, "vmbr0"), cmp.Or(n.Cores, 2), cmp.Or(n.Memory, "4G"), cmp.Or(n.SystemDisk, "20G")
	return setup.New(ctx, c.initSources(s, dir), setup.NewSources{
		Talos: machineconfig.NewestTalos(), Kubernetes: machineconfig.KubernetesFor, Secrets: machineconfig.NewSecrets,
		Protect: func(_ context.Context, _ string, _ []string, text cluster.Secret) ([]byte, string, error) {
			return text, "", nil
		},
	}, o, n)
}

// initSources makes dir the client's working directory.
func (c *Client) initSources(s *session, dir string) setup.InitSources {
	c.Dir = dir
	return setup.InitSources{
		Proxmox: s.machines.Proxmox.(pipeline.Hypervisor),
		Say:     func(string) {},
		Load:    func(file string) (pipeline.Project, error) { return c.load(file) },
		Images: func(p pipeline.Project) (pipeline.Images, error) {
			return c.imagesOf(s, p)
		},
		Ask: func(_ context.Context, q setup.Question) (string, error) {
			c.Asked = append(c.Asked, q)
			if q.Default == "" {
				return "", fault.Configf("%s No answer is safe to take", q.Text)
			}
			return q.Default, nil
		},
	}
}

// imagesOf makes the clients of factory and registry for a configuration.
func (c *Client) imagesOf(s *session, p pipeline.Project) (pipeline.Images, error) {
	transport := &http.Transport{DialContext: c.dialer.DialContext}
	s.close = append(s.close, transport.CloseIdleConnections)
	f, err := factory.New(factory.Options{URL: p.Config.Images.Factory, Transport: transport, Wrap: c.wrap("factory")})
	if err != nil {
		return pipeline.Images{}, err
	}
	r, err := registry.New(registry.Options{Extensions: p.Config.Images.Extensions + "/extensions", Transport: transport, Wrap: c.wrap("registry")})
	if err != nil {
		return pipeline.Images{}, err
	}
	s.close = append(s.close, func() { _ = f.Close(); _ = r.Close() }) // idle connections only
	return pipeline.Images{Factory: f, Registry: r, Imager: c.Imager, Catalog: r}, nil
}
