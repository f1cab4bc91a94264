package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newRollCmd(s *streams, g *globals) *cobra.Command {
	var f rollFlags
	c := &cobra.Command{
		Use: "roll", Short: "Bring every stale node to the lock",
		Long: `Check the lock, build and publish what is missing, show the plan, ask, and then
recreate one stale node after the other: drain, stop, park its disks, delete the
VM, create it again from the new boot ISO, give the persistent disks back, wait
until it is healthy. The old system disk stays parked.

A roll that was interrupted is finished first: run the same command again.
The first Ctrl-C finishes the node that is out and starts no other; the second
stops at once.`,
		Example: `  recast roll
  recast roll --only wk1
  recast roll --yes -o json    # in CI`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := format(f.out, "text", "json"); err != nil {
				return err
			}
			return g.withMachines(c.Context(), s, func(ctx context.Context, p pipeline.Project, m pipeline.Machines) error {
				return roll(ctx, s, p, m, f)
			})
		},
	}
	selection(c, &f.policy)
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask")
	c.Flags().StringVarP(&f.out, "output", "o", "text", "text or json")
	return c
}

type rollFlags struct {
	policy cluster.Policy
	yes    bool
	out    string
}

func roll(ctx context.Context, s *streams, p pipeline.Project, m pipeline.Machines, f rollFlags) error {
	var cl closers
	defer cl.close()
	images, err := connectImages(p, &cl)
	if err != nil {
		return err
	}
	run := &step.Runner{Emit: ui.NewProgress(s.err).Emit}
	rep, err := pipeline.Roll(ctx, p, images, m, run, pipeline.RollOptions{
		Policy: f.policy, MachineConfig: machineConfigs(p),
		Confirm: func(plan cluster.Plan) (bool, error) {
			if err := ui.WritePlan(s.err, "text", plan); err != nil {
				return false, err
			}
			ok, err := confirm(ctx, s, f.yes)
			if ok {
				// From here on a node may be out: the first Ctrl-C lets it be finished.
				cl.add(s.interrupts.onFirst(run.Stop))
			}
			return ok, err
		},
	})
	if rep.Run != "" || err == nil {
		if err := ui.WriteReport(s.out, f.out, rep); err != nil {
			return err
		}
	}
	return err
}

// confirm asks on a terminal, and refuses to guess without one.
func confirm(ctx context.Context, s *streams, yes bool) (bool, error) {
	if yes {
		return true, nil
	}
	if !ui.IsTerminal(s.in) {
		return false, fault.WithHint(fault.Configf("a roll needs to be confirmed, and there is no terminal to ask on"), "recast roll --yes")
	}
	fmt.Fprint(s.err, "Recreate these nodes? Only \"yes\" goes on: ")
	answers := make(chan string, 1)
	go func() { // ends with the line, or with the process
		line, _ := bufio.NewReader(s.in).ReadString('\n') // end of input is a no
		answers <- strings.TrimSpace(line)
	}()
	select {
	case answer := <-answers:
		return answer == "yes", nil
	case <-ctx.Done():
		return false, nil
	}
}
