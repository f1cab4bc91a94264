package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newConfigCmd(s *streams, g *globals) *cobra.Command {
	c := &cobra.Command{
		Use: "config", Short: "Compare and show machine configurations",
		Long: `Compare the machine configurations in talos.machineConfigs with those that the nodes
run, and show either. Nothing is changed, and no secret is shown unless you ask for it.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newConfigDiffCmd(s, g), newConfigShowCmd(s, g), newConfigRenderCmd(s, g))
	return c
}

func newConfigDiffCmd(s *streams, g *globals) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "diff [NODE...]", Short: "Show how configurations differ from what nodes run",
		Long: `Compare each node's configuration in talos.machineConfigs with the one that it runs,
document by document and field by field. What recast sets itself is left out: the
installer, the install disk, the hostname, and the versions of Kubernetes. Secrets are
compared, and shown as changed, but their values are not shown.

Exits 0 if nothing differs, 2 if something does, and 1 if a node's configuration could
not be compared. That needs a talosconfig with the role os:admin.`,
		Example: `  recast config diff
  recast config diff wk1 -o json`,
		RunE: func(c *cobra.Command, nodes []string) error {
			if err := format(out, "text", "json"); err != nil {
				return err
			}
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				res, err := pipeline.DiffConfigs(ctx, p, m, nodes...)
				if err != nil {
					return err
				}
				err = ui.WriteConfigDiffs(s.out, out, res)
				switch {
				case res.Unread > 0:
					return cmp.Or(err, fault.WithHint(fault.Unread.Of(errUnread), "the reasons are in the answer above"))
				case res.Differ > 0:
					return cmp.Or(err, errDiffers)
				}
				return err
			})
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "text", "text or json")
	return c
}

func newConfigShowCmd(s *streams, g *globals) *cobra.Command {
	var kept, secrets bool
	c := &cobra.Command{
		Use: "show NODE", Short: "Show the configuration that a node runs",
		Long: `Show the machine configuration that a node runs, as YAML, or with --kept the one that
talos.machineConfigs has for it. Secrets are replaced by "[redacted value]", and
comments are left out; --secrets shows it as it is, on a terminal only.

It needs a talosconfig with the role os:admin.`,
		Example: `  recast config show wk1
  recast config show wk1 --kept`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if secrets && !ui.IsTerminal(s.out) {
				return errUsage{errors.New("--secrets shows secrets on a terminal only: talosctl get machineconfig v1alpha1 -o jsonpath={.spec} writes them to a file")}
			}
			read := pipeline.RunningConfig
			if kept {
				read = pipeline.KeptConfig
			}
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				text, err := read(ctx, p, m, args[0])
				if err != nil {
					return err
				}
				shown, err := shownConfig(text, secrets)
				if err != nil {
					return err
				}
				_, err = s.out.Write(shown)
				return err
			})
		},
	}
	c.Flags().BoolVar(&kept, "kept", false, "show what talos.machineConfigs has for the node")
	c.Flags().BoolVar(&secrets, "secrets", false, "show secrets, on a terminal only")
	return c
}

func newConfigRenderCmd(s *streams, g *globals) *cobra.Command {
	var to string
	var running, secrets bool
	c := &cobra.Command{
		Use: "render [NODE...]", Short: "Write configurations to files",
		Long: `Write each node's configuration in talos.machineConfigs to NODE.yaml in a directory: what
its program writes, decrypted; or with --running the one that the node runs, to begin
with. Secrets are replaced by "[redacted value]", for a review; with --secrets the files
are those that recast would apply. Encrypt them before you commit them: recast decrypts
what sops or age encrypted.

Only you can read the files. No existing file is overwritten.`,
		Example: `  recast config render --to /tmp/review
  recast config render --to machine --running --secrets`,
		RunE: func(c *cobra.Command, nodes []string) error {
			if to == "" {
				return errUsage{errors.New("--to names the directory for the files")}
			}
			read := pipeline.KeptConfig
			if running {
				read = pipeline.RunningConfig
			}
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				return renderConfigs(s, to, pipeline.NodeNames(p, nodes), func(node string) ([]byte, error) {
					text, err := read(ctx, p, m, node)
					if err != nil {
						return nil, err
					}
					return shownConfig(text, secrets)
				})
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "`directory` for the files")
	c.Flags().BoolVar(&running, "running", false, "write what the nodes run")
	c.Flags().BoolVar(&secrets, "secrets", false, "write secrets as they are")
	return c
}

// renderConfigs writes a file for each node, after it has read them all.
func renderConfigs(s *streams, dir string, nodes []string, read func(node string) ([]byte, error)) error {
	texts := make([][]byte, len(nodes))
	for i, node := range nodes {
		file := filepath.Join(dir, node+".yaml")
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			return fault.WithHint(fault.Configf("%s is there already", file), "name another directory with --to, or remove the file")
		}
		var err error
		if texts[i], err = read(node); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for i, node := range nodes {
		file := filepath.Join(dir, node+".yaml")
		if err := saveFile(file, func(w io.Writer) error { _, err := w.Write(texts[i]); return err }); err != nil {
			return err
		}
		fmt.Fprintln(s.out, file)
	}
	return nil
}

func shownConfig(text cluster.Secret, secrets bool) ([]byte, error) {
	if secrets {
		return text, nil
	}
	return pipeline.Shown(text)
}
