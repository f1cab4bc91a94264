package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Set by the linker in releases (.goreleaser.yaml).
var (
	version = "devel"
	commit  = ""
	date    = "" // of the commit
)

func newVersionCmd(s *streams) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of recast", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(s.out, builtFrom())
			return err
		},
	}
}

// builtFrom is the line that recast version prints, and recast --version.
func builtFrom() string {
	built := []string{"commit " + revision()}
	if date != "" {
		built = append(built, date)
	}
	built = append(built, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
	return fmt.Sprintf("recast %s (%s)\n", version, strings.Join(built, ", "))
}

// revision is the commit that recast was built from.
func revision() string {
	if commit != "" {
		return commit
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				return setting.Value
			}
		}
	}
	return "unknown"
}

// newDocsCmd writes the reference page of every command: make docs writes Markdown to
// the repository, a release writes man pages to its archives.
func newDocsCmd() *cobra.Command {
	var dir, out string
	c := &cobra.Command{
		Use: "docs", Short: "Write the command reference", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			root := c.Root()
			root.DisableAutoGenTag = true
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("write the command reference: %w", err)
			}
			if out == "man" {
				return writeManPages(root, dir)
			}
			return doc.GenMarkdownTree(root, dir)
		},
	}
	c.Flags().StringVar(&dir, "dir", "docs/reference", "`directory` to write to")
	c.Flags().Var(oneOf(&out, "markdown", "man"), "format", "format of the pages")
	return c
}

// writeManPages writes a page for each command. They are reproducible: their date is
// the commit's.
func writeManPages(root *cobra.Command, dir string) error {
	header := &doc.GenManHeader{Section: "1", Source: "recast " + version, Manual: "recast"}
	if when, err := time.Parse(time.RFC3339, date); err == nil {
		header.Date = &when
	}
	return doc.GenManTree(root, header, dir)
}
