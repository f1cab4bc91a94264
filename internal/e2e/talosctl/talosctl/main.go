// Command talosctl is Sidero's talosctl v1.14.1 without the commands that make clusters
// (cluster, …): those need a version of jsimonetti/rtnetlink that not every Go module proxy
// serves, and do not talk to machines.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/siderolabs/talos/cmd/talosctl/cmd/common"
	"github.com/siderolabs/talos/cmd/talosctl/cmd/mgmt/gen"
	"github.com/siderolabs/talos/cmd/talosctl/cmd/talos"
	"github.com/siderolabs/talos/cmd/talosctl/pkg/talos/safeout"
	"github.com/siderolabs/talos/pkg/cli"
	"github.com/spf13/cobra"
)

func main() { os.Exit(run(os.Args[1:])) }

// run is cmd.Execute of Talos' cmd/talosctl/cmd/root.go.
func run(args []string) int {
	defer safeout.Flush() // Talos drops its error too
	root := &cobra.Command{Use: "talosctl", SilenceErrors: true, SilenceUsage: true}
	root.SetOut(safeout.Stdout())
	root.SetErr(safeout.Stderr())
	root.SetArgs(args)
	root.AddCommand(append(slices.Clone(talos.Commands), gen.Cmd)...)
	if _, err := cli.WithContextC(context.Background(), root.ExecuteContextC); err != nil {
		if !common.SuppressErrors {
			safeout.Flush()
			fmt.Fprintln(os.Stderr, safeout.String(err.Error()))
		}
		return 1
	}
	return 0
}
