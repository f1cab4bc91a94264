package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/talos"
	"github.com/recast-sh/recast/internal/terraform"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/adopt"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/pipeline/configs"
)

func newDoctorCmd(s *streams, g *globals) *cobra.Command {
	var out, terraformPlan string
	c := &cobra.Command{
		Use: "doctor", Short: "Check what a roll needs, and say how to fix what is missing",
		Long: `Check everything that a roll needs, and continue if something can't be read:

  Proxmox      endpoints, certificate, versions, quorum, clocks, a leftover claim
  privileges   which privileges the API token needs, on which path and for what, and
               which are missing, with the pveum commands that grant exactly those
  storage      content types, free space, thin pools, the upload spool, the ISOs of the lock
  Talos        talosconfig, its certificate, every machine and its version, etcd
  Kubernetes   kubeconfig, its certificate, the API, versions
  gates        whether the objects in roll.gates exist and satisfy the gate now, and
               whether its programs can be run; they are not run
  hooks        whether the programs of roll.hooks can be run, and whether the environment
               variables for the webhooks of notify are set; nothing is run or sent
  images       the lock, the Image Factory, the registry of extensions
  nodes        for every node: its VM, what rules out recreate, reimage and in-place,
               and which of them a roll would use

A new token has no privileges: run doctor, paste its commands as root on a Proxmox
node, run doctor again. Changes nothing. Exits 0 if nothing prevents a roll, with or
without warnings; 1 if something could not be reached or read; 3 if the configuration
is wrong; 4 if privileges or space are missing or a node can't be rolled.

--terraform looks at nothing but a plan of Terraform or OpenTofu, and needs no server:
would it destroy, replace or stop the VM of a node, or remove, shrink or move a disk of
one? It names each such resource, what would be lost, and the block that prevents it,
and exits 4; also if it would reboot or upgrade two control planes, or more nodes than
roll.maxUnavailable.workers, in one apply. Fewer are a warning. Nodes are told by
nodes[].vmid.`,
		Example: `  recast doctor
  terraform show -json plan.out | recast doctor --terraform -
  recast doctor -o json | jq -r '.grants[]?'    # only the pveum commands`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := g.open()
			if err != nil {
				return err
			}
			if terraformPlan != "" {
				return checkTerraform(c.Context(), s, p, terraformPlan, out)
			}
			var cl closers
			defer cl.close()
			src := doctorSources(s, p, &cl)
			if src.Webhooks, err = webhooks(s, p, &cl); err != nil {
				return err
			}
			var progress slow
			src.Say = func(text string) { progress.say(s, text) }
			res := checkup.Run(c.Context(), p, src)
			progress.end()
			s.telemetry.Examined(res)
			if err := c.Context().Err(); err != nil {
				return err
			}
			if err := ui.WriteDoctor(s.out, out, res); err != nil {
				return err
			}
			return res.Err()
		},
	}
	c.Flags().StringVar(&terraformPlan, "terraform", "", "`file` with what terraform show -json prints of a plan; -: standard input")
	outputFlag(c, &out, "text", "json")
	return c
}

// checkTerraform holds a plan of Terraform against the nodes.
func checkTerraform(ctx context.Context, s *streams, p pipeline.Project, file, out string) error {
	doc, err := readTerraform(s, file)
	if err != nil {
		return err
	}
	read, err := machineConfigs(s, p)
	if err != nil {
		return err
	}
	v, err := adopt.Check(p.Config, doc, configs.Roles(ctx, p, read))
	if err != nil {
		return err
	}
	if err := ui.WriteVerdict(s.out, out, v); err != nil {
		return err
	}
	return v.Err()
}

// readTerraform reads what terraform show -json printed.
func readTerraform(s *streams, file string) (*terraform.Document, error) {
	var text []byte
	var err error
	if file == "-" {
		file = "standard input"
		text, err = io.ReadAll(s.in)
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, fault.WithHint(fault.Configf("read what terraform show -json printed: %w", err), "terraform show -json > show.json makes the file")
	}
	return terraform.Read(file, text)
}

// doctorSources opens what can be opened, and keeps the errors of the rest.
func doctorSources(s *streams, p pipeline.Project, cl *closers) checkup.Sources {
	var src checkup.Sources
	if px, err := connectProxmox(s, p, cl); err != nil {
		src.ErrProxmox = err
	} else {
		px.Remember()
		src.Proxmox, src.Endpoints = px, endpoints(s, p, cl)
	}
	if t, err := connectTalos(s, p, cl); err != nil {
		src.ErrTalos = err
	} else {
		src.Talos, src.Files = t, t
	}
	if b, err := os.ReadFile(p.Config.Talos.Config); err == nil {
		src.TalosExpires = talos.Expires(b)
	}
	if k, err := connectKube(s, p, cl); err != nil {
		src.ErrKube = err
	} else {
		src.Kube, src.Objects = k, k
	}
	if path, err := kubeconfigFile(); err == nil {
		if b, err := os.ReadFile(path); err == nil {
			src.KubeExpires = kube.Expires(b)
		}
	}
	src.Images, src.ErrImages = connectImages(s, p, cl)
	return src
}

// endpoints makes one client for each endpoint.
func endpoints(s *streams, p pipeline.Project, cl *closers) []checkup.Endpoint {
	var out []checkup.Endpoint
	for _, url := range p.Config.Proxmox.Endpoints {
		conf := *p.Config
		conf.Proxmox.Endpoints = []string{url}
		px, err := connectProxmox(s, pipeline.Project{Config: &conf}, cl)
		out = append(out, checkup.Endpoint{URL: url, Hosts: func(ctx context.Context) ([]cluster.Host, error) {
			if err != nil {
				return nil, err
			}
			return px.HostList(ctx)
		}})
	}
	return out
}

// slow prints what is being checked once a check takes longer than a second.
type slow struct {
	mu    sync.Mutex
	timer *time.Timer
}

func (w *slow) say(s *streams, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	w.timer = time.AfterFunc(time.Second, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.timer != nil {
			fmt.Fprintf(s.err, "%s\n", text)
		}
	})
}

// end stops further output.
func (w *slow) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}
