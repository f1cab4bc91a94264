package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

func newRootCmd(s *streams) *cobra.Command {
	var g globals
	c := &cobra.Command{
		Use: "recast", Short: "Rebuild Talos images and roll them through Proxmox VE",
		Long:          longHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.Version = version
	c.SetVersionTemplate(builtFrom())
	c.Flags().Bool("version", false, "print the version of recast")
	_ = c.Flags().MarkHidden("version") // fails only for an unknown flag; recast version is in the list
	c.SetIn(s.in)
	c.SetOut(s.out)
	c.SetErr(s.err)
	c.PersistentFlags().StringVarP(&g.config, "config", "c", "recast.yaml", "configuration `file`; paths in it are relative to it")
	c.SetFlagErrorFunc(flagError)
	group(c, "Every day:", newLockCmd(s, &g), newPlanCmd(s, &g), newRollCmd(s, &g), newStatusCmd(s, &g), newUICmd(s, &g), newUndoCmd(s, &g), newDriftCmd(s, &g), newHistoryCmd(s, &g))
	group(c, "When something went wrong:", newRunbookCmd(s), newSupportBundleCmd(s, &g), newRestoreCmd(s, &g), newRebuildCmd(s, &g))
	group(c, "Set-up and upkeep:", newInitCmd(s), newAdoptCmd(s), newDoctorCmd(s, &g), newPublishCmd(s, &g), newConfigCmd(s, &g), newUpgradeK8sCmd(s, &g), newBootstrapCmd(s, &g), newRemoveCmd(s, &g),
		newBackupCmd(s, &g), newPruneCmd(s, &g), newOperatorCmd(s), newLabCmd(s), newVersionCmd(s))
	c.SetCompletionCommandGroupID("Set-up and upkeep:")
	c.SetUsageTemplate("{{if .HasParent}}" + c.UsageTemplate() + "{{else}}" + firstScreen + "{{end}}")
	c.AddCommand(newDocsCmd(),
		&cobra.Command{Use: "environment", Short: "Environment variables that recast reads", Long: envHelp},
		&cobra.Command{Use: "exit-codes", Short: "What each exit code means", Long: exitHelp})
	usageErrors(c)
	g.observe(c, s)
	colourful(c)
	return c
}

// group adds commands that --help shows together.
func group(root *cobra.Command, title string, list ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range list {
		c.GroupID = title
	}
	root.AddCommand(list...)
}

// flagError names the flag that was meant, if one is close.
func flagError(c *cobra.Command, err error) error {
	hint := c.CommandPath() + " --help"
	if unknown, ok := errors.AsType[interface {
		error
		GetSpecifiedName() string
	}](err); ok {
		var known []string
		add := func(f *pflag.Flag) { known = append(known, f.Name) }
		c.Flags().VisitAll(add)
		c.InheritedFlags().VisitAll(add)
		if meant := words.Closest(unknown.GetSpecifiedName(), known); meant != "" && meant != unknown.GetSpecifiedName() {
			hint = fmt.Sprintf("did you mean --%s?", meant)
		}
	}
	return fault.WithHint(errUsage{err}, "%s", hint)
}
