// Package lab is recast lab: commands that run a simulated datacentre and do things in one that runs. The
// datacentre itself is package sim.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

// Program is what the commands need of the program that they belong to.
type Program struct {
	Out, Err io.Writer
	// Run runs another command of recast.
	Run func(ctx context.Context, args ...string) error
	// Differs is what Run returns from a command that exits with 2.
	Differs error
	// Lock locks the schematics of a recast.yaml, and returns each as YAML by its name.
	Lock func(ctx context.Context, config string) (map[string]string, error)
}

// newShellCmds are the commands of a Proxmox node's shell that are needed to undo an
// exchange by hand. Only qm is shown in the help.
func newShellCmds(p Program) []*cobra.Command {
	var list []*cobra.Command
	for _, program := range []string{"qm", "ha-manager", "pvesh", "pvesm"} {
		c := newShellCmd(p, program)
		c.Hidden = program != "qm"
		list = append(list, c)
	}
	return list
}

func newShellCmd(p Program, program string) *cobra.Command {
	var dir, node string
	c := &cobra.Command{
		Use: program + " [--dir DIR] [--node NODE] ARGUMENT...", Short: "Run " + program + " as root on a Proxmox node of a running lab",
		Long: `Simulate Proxmox's qm, as root on a node of a running lab, with the subcommands
that are needed to undo an unfinished exchange by hand: config, create, set, disk
move, disk rescan, start, stop, shutdown, unlock, destroy. recast lab ha-manager,
recast lab pvesh and recast lab pvesm cover the other steps. The procedure is in
docs/notes/proxmox.md; practise it here.`,
		Example: `  recast lab qm config 9031
  qm() { recast lab qm "$@"; }      # then commands for root's shell work unchanged`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			out, err := sim.AskShell(c.Context(), dir, node, append([]string{program}, args...))
			fmt.Fprint(p.Out, out)
			if err != nil {
				return labRunning(err, dir)
			}
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "lab", "working `directory` of the running lab")
	c.Flags().StringVar(&node, "node", "pve1", "Proxmox `node` whose shell it is")
	c.Flags().SetInterspersed(false) // after the first word, options belong to the program
	return c
}

func newSlowCmd(p Program) *cobra.Command {
	var dir string
	var d time.Duration
	c := &cobra.Command{
		Use: "slow SERVER", Short: "Make an API of a running lab slow for some time",
		Long: `Make the API of proxmox, of talos (all machines) or of kubernetes slow. It handles
requests only when the time is over, and drops those whose client has given up by
then. A roll continues and says what it waits for.`,
		Example: `  recast lab slow kubernetes --dir lab
  recast lab slow talos --for 2m --dir lab`,
		Args: cobra.ExactArgs(1), ValidArgs: sim.SlowServers,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case !slices.Contains(sim.SlowServers, args[0]):
				return fault.As(fault.Config, fmt.Errorf("%s: a lab has the APIs %s", args[0], strings.Join(sim.SlowServers, ", ")))
			case d < 0:
				return fault.As(fault.Config, errors.New("--for must not be less than 0"))
			}
			if err := sim.AskSlow(c.Context(), dir, args[0], d); err != nil {
				return labRunning(err, dir)
			}
			fmt.Fprintf(p.Out, "%s is slow for %s\n", args[0], d)
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "lab", "working `directory` of the running lab")
	c.Flags().DurationVar(&d, "for", time.Minute, "how long, in the lab's time; 0 ends it")
	return c
}

const (
	envName  = "env"      // for sh, bash and zsh
	fishName = "env.fish" // for fish
)

// addEnv adds the files that a shell sources: the variables of the lab's clients, and where recast itself is.
func addEnv(files map[string][]byte, env map[string]string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program's own file: %w", err)
	}
	var sh, fish strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&sh, "export %s=%s\n", name, shQuote(env[name]))
		fmt.Fprintf(&fish, "set -gx %s %s\n", name, fishQuote(env[name]))
	}
	bin := filepath.Dir(self)
	fmt.Fprintf(&sh, "PATH=%s:\"$PATH\"\n", shQuote(bin))
	fmt.Fprintf(&fish, "set -gx PATH %s $PATH\n", fishQuote(bin))
	files[envName], files[fishName] = []byte(sh.String()), []byte(fish.String())
	return nil
}

func shQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// fishQuote quotes for fish, which knows two escapes in single quotes: \\ and \'.
func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}

func newPveumCmd(p Program) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "pveum [--dir DIR] ARGUMENT...", Short: "Manage permissions of users and tokens in a running lab",
		Long: `Simulate Proxmox's pveum in a running lab: roles, users, tokens and the access
control list, as far as a token needs them. The commands that recast doctor prints
work here unchanged.

The token $POOR_TOKEN in the lab's env file exists but has no privileges.`,
		Example: `  recast lab pveum role add Recast --privs "VM.Audit,Sys.Audit"
  recast lab pveum acl modify / --tokens poor@pve!lab --roles Recast`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			out, err := sim.AskPveum(c.Context(), dir, args)
			if err != nil {
				return labRunning(err, dir)
			}
			fmt.Fprint(p.Out, out)
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "lab", "working `directory` of the running lab")
	c.Flags().SetInterspersed(false) // after the first word, options belong to pveum
	return c
}
