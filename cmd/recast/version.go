package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// version is set by the linker in releases.
var version = "devel"

func newVersionCmd(s *streams) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of recast", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			commit := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, setting := range info.Settings {
					if setting.Key == "vcs.revision" {
						commit = setting.Value
					}
				}
			}
			_, err := fmt.Fprintf(s.out, "recast %s (commit %s, %s, %s/%s)\n", version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// newDocsCmd writes the reference pages of every command; make docs calls it.
func newDocsCmd() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "docs", Short: "Write the command reference", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			c.Root().DisableAutoGenTag = true
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("write the command reference: %w", err)
			}
			return doc.GenMarkdownTree(c.Root(), dir)
		},
	}
	c.Flags().StringVar(&dir, "dir", "docs/reference", "`directory` to write to")
	return c
}
