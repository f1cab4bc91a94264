package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/adminconfig"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/configs"
)

func newBootstrapCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	c := &cobra.Command{
		Use: "bootstrap CONTROL-PLANE", Short: "Make a whole cluster from nothing",
		Long: `Make the cluster that recast.yaml describes, from nothing: recast init --new writes one.
Images are built and published, and the VM of the named control plane is made: it
installs Talos, gets its configuration, and etcd begins on it. Then all other nodes are
made, side by side within roll.maxUnavailable.perHost.

etcd begins exactly once, on that one machine, and only if there is nothing of the
cluster yet: no VM with a node's name or number, no machine at a node's address, no
parked disk, no other machine in Talos' discovery, no answer from its Kubernetes API.

The talosconfig (talos.config in recast.yaml, else TALOSCONFIG, else ~/.talos/config)
and the kubeconfig (KUBECONFIG, else ~/.kube/config) are made from the configuration of
that control plane, readable only for you. Files that are there already stay, and must
be of this cluster.

Safe to run again: a bootstrap that was interrupted goes on, here or on another
machine. Where there is a cluster already, its missing nodes are made, and nothing else
is changed.`,
		Example: `  recast init --new
  recast bootstrap cp1`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := makeCredentials(c.Context(), s, g, args[0]); err != nil {
				return errOpening{err}
			}
			return f.withRun(c, s, g, func(ctx context.Context, p pipeline.Project, m pipeline.Machines, run *step.Runner, o pipeline.RollOptions) (pipeline.Report, error) {
				var cl closers
				defer cl.close()
				images, err := connectImages(s, p, &cl)
				if err != nil {
					return pipeline.Report{}, err
				}
				return pipeline.Bootstrap(ctx, p, images, m, run, o, args[0])
			})
		},
	}
	f.add(c)
	return c
}

// makeCredentials makes the talosconfig and the kubeconfig of a cluster that begins with that node, or
// sees that those which are there are of that cluster.
func makeCredentials(ctx context.Context, s *streams, g *globals, first string) error {
	p, err := g.open()
	if err != nil {
		return err
	}
	read, err := machineConfigs(s, p)
	if err != nil {
		return err
	}
	text, endpoints, err := configs.Begin(ctx, p, read, first)
	if err != nil {
		return err
	}
	made, err := adminconfig.Of(p.Config.Cluster, text, endpoints)
	if err != nil {
		return err
	}
	kubeconfig, err := kubeconfigFile()
	if err != nil {
		return err
	}
	return errors.Join(
		s.makeCredential(p.Config.Talos.Config, made.Talosconfig, made.IsTalosconfig, "talos.config in recast.yaml, or TALOSCONFIG, names another file for it"),
		s.makeCredential(kubeconfig, made.Kubeconfig, made.IsKubeconfig, "KUBECONFIG names another file for it: export KUBECONFIG=$PWD/kubeconfig"),
	)
}

// makeCredential writes a file that only its owner may read, unless there is one of the same cluster.
func (s *streams) makeCredential(path string, content cluster.Secret, isOurs func([]byte) (bool, error), elsewhere string) error {
	there, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = savefile.Write(path, func(w io.Writer) error { _, err := w.Write(content); return err })
		}
		if err == nil {
			s.say("wrote " + path + ", which gives access to the whole cluster")
		}
		return fault.As(fault.Config, err)
	case err != nil:
		return fault.Credentials.Configf("%w", err)
	}
	switch ours, err := isOurs(there); {
	case err != nil:
		return fault.Credentials.Configf("read %s: %w", path, err)
	case !ours:
		return fault.WithHint(fault.Credentials.Of(fault.As(fault.Config, fmt.Errorf("%s is of another cluster", path))), "%s", elsewhere)
	}
	return nil
}
