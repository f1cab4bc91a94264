package lab

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/sim"
)

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
