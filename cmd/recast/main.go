// Command recast rebuilds the images of a Talos Linux cluster and rolls them through
// Proxmox VE, one VM at a time. Each command is a function, which parses flags, calls
// package pipeline and prints the result through package ui.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	if err := hide(); err != nil {
		fmt.Fprintf(os.Stderr, "warning: other programs of this user can read recast's memory: %v\n", err)
	}
	cobra.EnableCommandSorting = false // --help has them in the order of their use
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program as a function. It returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	s := &streams{in: stdin, out: stdout, err: &console{Writer: stderr}, interrupts: &interrupts{}}
	ctx, stop := interruptible(context.Background(), s)
	defer stop()
	root := newRootCmd(s)
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	code := s.exit(c, err)
	s.telemetry.End(ctx, code, err)
	s.err.drain(ctx) // the last lines say why it failed
	return code
}
