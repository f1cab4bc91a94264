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

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/machineconfig"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/configs"
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
compared, and shown as changed, but their values are not shown. Where a machine has no
configuration, because it is new or was reset, it says as recast plan does whether the
file is of another node or another cluster.

Exits 0 if nothing differs, 2 if something does, and 1 if a node's configuration could
not be compared. It needs a talosconfig with the role os:admin.`,
		Example: `  recast config diff
  recast config diff wk1 -o json`,
		RunE: func(c *cobra.Command, nodes []string) error {
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				res, err := configs.Compare(ctx, p, m, nodes...)
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
	outputFlag(c, &out, "text", "json")
	return c
}

func newConfigShowCmd(s *streams, g *globals) *cobra.Command {
	var wanted, secrets bool
	c := &cobra.Command{
		Use: "show NODE", Short: "Show the configuration that a node runs",
		Long: `Show the machine configuration that a node runs, as YAML, or with --wanted the one that
talos.machineConfigs has for it, which needs no access to the cluster. Secrets are
replaced by "[redacted value]", and comments are left out; --secrets shows it as it is,
on a terminal only.

What a node runs is read with a talosconfig with the role os:admin.`,
		Example: `  recast config show wk1
  recast config show wk1 --wanted`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, node []string) error {
			if secrets && !ui.IsTerminal(s.out) {
				return errUsage{errors.New("--secrets shows secrets on a terminal only: recast config render writes them to a file")}
			}
			read, err := g.configs(c.Context(), s, !wanted, node)
			if err != nil {
				return err
			}
			text, err := shownConfig(read[0], secrets)
			if err != nil {
				return err
			}
			_, err = s.out.Write(text)
			return err
		},
	}
	c.Flags().BoolVar(&wanted, "wanted", false, "show what talos.machineConfigs has for the node")
	c.Flags().BoolVar(&secrets, "secrets", false, "show secrets, on a terminal only")
	return c
}

func newConfigRenderCmd(s *streams, g *globals) *cobra.Command {
	var to string
	var running, secrets, encrypt bool
	c := &cobra.Command{
		Use: "render [NODE...]", Short: "Write configurations to files",
		Long: `Write each node's configuration in talos.machineConfigs, decrypted, to NODE.yaml in a
directory, which needs no access to the cluster; or with --running the one that the node
runs, to begin with. Secrets are replaced by "[redacted value]", for a review; --encrypt
writes what sops makes of them, by the rules in your .sops.yaml, and nothing in the clear;
--secrets writes them as they are. --running needs one of these two. recast decrypts what
sops or age encrypted.

Only you can read the files. No existing file is overwritten.`,
		Example: `  recast config render --to /tmp/review
  recast config render --to machine --running --encrypt`,
		RunE: func(c *cobra.Command, nodes []string) error {
			switch {
			case to == "":
				return errUsage{errors.New("--to names the directory for the files")}
			case encrypt && secrets:
				return errUsage{errors.New("--encrypt and --secrets exclude each other")}
			case running && !encrypt && !secrets:
				return errUsage{fault.WithHint(errors.New("--running writes the files that talos.machineConfigs is to name, and a node can't run one whose secrets are replaced by \"[redacted value]\""),
					"--encrypt writes them encrypted by sops, --secrets as they are; recast config show NODE shows one without secrets")}
			}
			read, err := g.configs(c.Context(), s, running, nodes)
			if err != nil {
				return err
			}
			text := func(c configs.Config) ([]byte, error) { return shownConfig(c, secrets) }
			if encrypt {
				text = encrypted(c.Context(), s, to)
			}
			return renderConfigs(s, to, read, text)
		},
	}
	c.Flags().StringVar(&to, "to", "", "`directory` for the files")
	c.Flags().BoolVar(&running, "running", false, "write what the nodes run")
	c.Flags().BoolVar(&encrypt, "encrypt", false, "write them encrypted by sops")
	c.Flags().BoolVar(&secrets, "secrets", false, "write secrets as they are")
	return c
}

// configs reads what nodes run, or what talos.machineConfigs has for them.
func (g *globals) configs(ctx context.Context, s *streams, running bool, nodes []string) (read []configs.Config, err error) {
	if running {
		err = g.with(ctx, s, connectServers, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
			read, err = configs.Running(ctx, p, m, nodes...)
			return err
		})
		return read, err
	}
	p, err := g.open()
	if err != nil {
		return nil, err
	}
	source, err := machineConfigs(s, p)
	if err != nil {
		return nil, err
	}
	return configs.Wanted(ctx, p, source, nodes...)
}

// renderConfigs writes what text returns to a file for each node, after it has seen that none is there
// and that there is a text for each.
func renderConfigs(s *streams, dir string, all []configs.Config, text func(configs.Config) ([]byte, error)) error {
	path := func(c configs.Config) string { return filepath.Join(dir, c.Node+".yaml") }
	for _, c := range all {
		if _, err := os.Lstat(path(c)); !errors.Is(err, fs.ErrNotExist) {
			return fault.WithHint(cmp.Or(err, fault.Configf("%s is there already", path(c))), "name another directory with --to, or remove the file")
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	texts := make([][]byte, len(all))
	for i, c := range all {
		var err error
		if texts[i], err = text(c); err != nil {
			return err
		}
	}
	for i, c := range all {
		if err := savefile.Write(path(c), func(w io.Writer) error { _, err := w.Write(texts[i]); return err }); err != nil {
			return err
		}
		fmt.Fprintln(s.out, path(c))
	}
	return nil
}

// encrypted returns what makes the text of a node's file in dir, as sops encrypts it there.
func encrypted(ctx context.Context, s *streams, dir string) func(configs.Config) ([]byte, error) {
	return func(c configs.Config) ([]byte, error) {
		path, err := filepath.Abs(filepath.Join(dir, c.Node+".yaml"))
		if err != nil {
			return nil, err
		}
		o := machineconfig.Options{Base: filepath.Dir(path), Env: os.Environ(), Note: func(line string) { fmt.Fprintln(s.err, line) }}
		return o.Encrypt(ctx, path, c.Text)
	}
}

// shownConfig is the text of a configuration, with or without its secrets.
func shownConfig(c configs.Config, secrets bool) ([]byte, error) {
	if secrets {
		return c.Text, nil
	}
	text, err := configs.Shown(c.Text)
	return text, fault.Prefix("node "+c.Node, err)
}
