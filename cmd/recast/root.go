package main

import (
	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/fault"
)

func newRootCmd(s *streams) *cobra.Command {
	var g globals
	c := &cobra.Command{
		Use: "recast", Short: "Rebuild Talos images and roll them through Proxmox VE",
		Long:          longHelp + "\n\n" + envHelp + "\n\n" + exitHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.SetIn(s.in)
	c.SetOut(s.out)
	c.SetErr(s.err)
	c.PersistentFlags().StringVarP(&g.config, "config", "c", "recast.yaml", "configuration `file`; paths in it are relative to it")
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fault.WithHint(errUsage{err}, "%s --help", c.CommandPath())
	})
	c.AddCommand(
		newInitCmd(s), newDoctorCmd(s, &g), newLockCmd(s, &g), newBuildCmd(s, &g), newPublishCmd(s, &g),
		newPlanCmd(s, &g), newRollCmd(s, &g), newBootstrapCmd(s, &g), newRecoverCmd(s, &g), newRollbackCmd(s, &g), newRemoveCmd(s, &g), newDriftCmd(s, &g), newConfigCmd(s, &g), newProvenanceCmd(s, &g), newStatusCmd(s, &g), newHistoryCmd(s, &g), newReportCmd(s, &g), newPruneCmd(s, &g),
		newBackupCmd(s, &g), newRestoreCmd(s, &g), newRebuildCmd(s, &g), newUpgradeK8sCmd(s, &g),
		newOperatorCmd(s), newRunbookCmd(s), newSupportBundleCmd(s, &g), newLabCmd(s), newVersionCmd(s), newDocsCmd(),
	)
	usageErrors(c)
	g.observe(c, s)
	colourful(c)
	return c
}
