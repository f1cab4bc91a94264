package lab

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/sim"
)

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
