package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/sim"
)

// newLabShellCmds are the commands of Proxmox's own shell that undoing an
// exchange by hand takes; qm stands for them in the help.
func newLabShellCmds(s *streams) []*cobra.Command {
	var list []*cobra.Command
	for _, program := range []string{"qm", "ha-manager", "pvesh", "pvesm"} {
		c := newLabShellCmd(s, program)
		c.Hidden = program != "qm"
		list = append(list, c)
	}
	return list
}

func newLabShellCmd(s *streams, program string) *cobra.Command {
	var dir, node string
	c := &cobra.Command{
		Use: program + " [--dir DIR] [--node NODE] ARGUMENT...", Short: "Do on a Proxmox node of a running lab what root's " + program + " does",
		Long: `Do on a Proxmox node of a running lab what Proxmox's own command of that name
does for root, as far as undoing an unfinished exchange by hand needs it: config,
create, set, disk move, disk rescan, start, stop, shutdown, unlock, destroy.
recast lab ha-manager, recast lab pvesh and recast lab pvesm do what else is
needed. docs/notes/proxmox.md has the procedure, which can be practised here.`,
		Example: `  recast lab qm config 9031
  qm() { recast lab qm "$@"; }      # then lines for root's shell run as they are`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			out, err := sim.AskShell(c.Context(), dir, node, append([]string{program}, args...))
			fmt.Fprint(s.out, out)
			if err != nil {
				return labRunning(err, dir)
			}
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "lab", "working `directory` of the running lab")
	c.Flags().StringVar(&node, "node", "pve1", "Proxmox `node` whose shell it is")
	c.Flags().SetInterspersed(false) // from the first word on the options are the program's
	return c
}
