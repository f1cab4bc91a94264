package lab

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

func newSlowCmd(p Program) *cobra.Command {
	var dir string
	var d time.Duration
	c := &cobra.Command{
		Use: "slow SERVER", Short: "Make an API of a running lab slow for some time",
		Long: `Make the API of proxmox, of talos (all machines) or of kubernetes slow. It handles
requests only when the time is over, and drops those whose client has given up by
then. A roll continues and says what it waits for.`,
		Example: `  recast lab slow kubernetes --dir lab
  recast lab slow talos --for 2m --dir lab`,
		Args: cobra.ExactArgs(1), ValidArgs: sim.SlowServers,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case !slices.Contains(sim.SlowServers, args[0]):
				return fault.As(fault.Config, fmt.Errorf("%s: a lab has the APIs %s", args[0], strings.Join(sim.SlowServers, ", ")))
			case d < 0:
				return fault.As(fault.Config, errors.New("--for must not be less than 0"))
			}
			if err := sim.AskSlow(c.Context(), dir, args[0], d); err != nil {
				return labRunning(err, dir)
			}
			fmt.Fprintf(p.Out, "%s is slow for %s\n", args[0], d)
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "lab", "working `directory` of the running lab")
	c.Flags().DurationVar(&d, "for", time.Minute, "how long, in the lab's time; 0 ends it")
	return c
}
