package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/pipeline/support"
)

func newSupportBundleCmd(s *streams, g *globals) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "support-bundle", Short: "Collect what is needed to get help, without secrets",
		Long: `Write a tar.gz with recast.yaml, recast.lock, the logs and plans of the last runs on
this machine, the output of recast status and recast doctor, and what Proxmox, Talos,
Kubernetes and etcd report about the nodes. If something can't be read, the bundle says
why. So it works while no server can be reached, and with a broken recast.yaml: then it
has the harmless parts of that file and its errors, but no logs and no cluster data.

Only fields on a fixed list are included. Never included: the Proxmox token,
talosconfig, kubeconfig, machine configurations, commands and output of hooks and
gates, cloud-init users, passwords and keys. What looks like a secret is removed from
the rest. Names and addresses of nodes and hosts are included: review the bundle
before you share it. Changes nothing.`,
		Example: `  recast support-bundle
  recast support-bundle -o - | tar tz`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return g.supportBundle(c.Context(), s, out) },
	}
	c.Flags().StringVarP(&out, "output", "o", "", "`file` to write, - for standard output (default: recast-support-CLUSTER-TIME.tar.gz)")
	return c
}

func (g *globals) supportBundle(ctx context.Context, s *streams, out string) error {
	var cl closers
	defer cl.close()
	now := time.Now()
	p, src := g.bundleSources(ctx, s, &cl)
	fmt.Fprintln(s.err, "reading everything; servers that do not answer are skipped after two minutes at most")
	b := support.Bundle(ctx, p, src, now)
	if ctx.Err() != nil {
		return fmt.Errorf("gather the bundle: %w", context.Cause(ctx))
	}
	if out == "-" {
		return b.Write(s.out)
	}
	if out == "" {
		out = fmt.Sprintf("%s-%s.tar.gz", b.Dir, now.UTC().Format("20060102-150405"))
	}
	if err := savefile.Write(out, b.Write); err != nil {
		return fault.WithHint(fmt.Errorf("write the bundle: %w", err), "choose another file with --output FILE, or - for standard output")
	}
	_, err := fmt.Fprintf(s.out, "%s: %d files; review the bundle before you share it: tar xzf %s\n", out, len(b.Files()), out)
	return err
}

// bundleSources opens what can be opened; doctor's part has the errors of the rest.
func (g *globals) bundleSources(ctx context.Context, s *streams, cl *closers) (*pipeline.Project, support.Sources) {
	src := support.Sources{Version: map[string]string{
		"recast": version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
	}, Secrets: secretsHere()}
	src.Config, _ = os.ReadFile(g.config) // g.open reports the error
	p, err := g.open()
	if err != nil {
		src.Invalid = err
		return nil, src
	}
	if configs, err := machineConfigs(s, p); err == nil && configs != nil {
		for _, n := range p.Config.Nodes {
			text, _, _ := configs(ctx, n.Name) // without it, there is nothing to redact
			src.Secrets = append(src.Secrets, redact.YAML(text)...)
		}
	}
	src.Doctor = func(ctx context.Context) checkup.Result {
		return checkup.Run(ctx, p, doctorSources(s, p, cl))
	}
	if px, err := connectProxmox(s, p, cl); err == nil {
		src.VMs = px.VMs
		src.Status = func(ctx context.Context) (pipeline.StatusResult, error) {
			var opened closers
			defer opened.close()
			status := pipeline.StatusSources{Proxmox: px, Nodes: fromKube(s, p, &opened, (*kube.Client).Nodes), Lease: fromKube(s, p, &opened, (*kube.Client).Lease), Holds: fromKube(s, p, &opened, (*kube.Client).Holds), Dead: holder.Dead, Suspended: holder.Suspended}
			status.MachineConfig, _ = machineConfigs(s, p) // an error means that this machine has none
			return pipeline.Status(ctx, p, status)
		}
	}
	if m, err := connectMachines(s, p, cl); err == nil {
		src.Etcd = m.Talos
		src.Observe = func(ctx context.Context) (observe.Observation, error) { return pipeline.ObserveNodes(ctx, p, m) }
	}
	return &p, src
}

// secretsHere returns the secrets in the environment and in the files that it names.
func secretsHere() []string {
	out := redact.Environ(os.Environ())
	files := []string{filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json")}
	if path, err := kubeconfigFile(); err == nil {
		files = append(files, path)
	}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".docker", "config.json"))
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil { // the file itself is never included
			out = append(out, redact.YAML(b)...)
		}
	}
	return out
}
