// Command recast-operator keeps Talos clusters at their lock, as Kubernetes objects: see docs/howto/operator.md.
package main

import (
	"context"
	"fmt"
	"os"
	_ "time/tzdata" // for maintenance windows, wherever it runs

	"github.com/spf13/cobra"
)

// The linker sets these in a release.
var (
	version = "dev"
	commit  = ""
)

func main() { os.Exit(run(context.Background(), os.Args[1:])) }

func run(ctx context.Context, args []string) int {
	code := 0
	root := newManagerCmd()
	root.AddCommand(newAttemptCmd(&code))
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		if code == 0 {
			code = 1
		}
	}
	return code
}

func versionText() string {
	if commit == "" {
		return version
	}
	return version + " (" + commit + ")"
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s: unexpected argument %q", c.CommandPath(), args[0])
	}
	return nil
}
