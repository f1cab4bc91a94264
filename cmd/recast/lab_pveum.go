package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/sim"
)

func newLabPveumCmd(s *streams) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "pveum [--dir DIR] ARGUMENT...", Short: "Give users and tokens of a running lab their permissions",
		Long: `Do in a running lab what Proxmox's own command of that name does: roles, users,
tokens and the access control list, as far as a token needs them. The lines that
recast doctor prints can be tried here as they are.

The token $POOR_TOKEN of the lab's env file exists and may do nothing.`,
		Example: `  recast lab pveum role add Recast --privs "VM.Audit,Sys.Audit"
  recast lab pveum acl modify / --tokens poor@pve!lab --roles Recast`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			out, err := sim.AskPveum(c.Context(), dir, args)
			if err != nil {
				return labRunning(err, dir)
			}
			fmt.Fprint(s.out, out)
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "lab", "working `directory` of the running lab")
	c.Flags().SetInterspersed(false) // from the first word on the options are pveum's
	return c
}
