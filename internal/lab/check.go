package lab

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

func newCheckCmd(p Program) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "check", Short: "Check that a running lab lost nothing",
		Long: `Compare a running lab with its state at the start, as the datacentre itself sees it:
the SHA-256 of every persistent disk's bytes, the members of etcd, and that no
promise about them was broken meanwhile. Exits 0 if all of that holds. In a lab that
was empty, etcd may have any members, but no cluster may have been bootstrapped twice,
and a disk is watched from when Talos has made a user volume on it.`,
		Example: `  recast lab check --dir lab`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			before, now, err := sim.AskState(c.Context(), dir)
			if err != nil {
				return labRunning(err, dir)
			}
			if err := unharmed(before, now); err != nil {
				return err
			}
			fmt.Fprintln(p.Out, figures(before))
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "lab", "working `directory` of the running lab")
	return c
}

// figures is the result for a lab that lost nothing.
func figures(s sim.State) string {
	if len(s.Etcd) == 0 {
		return "no promise was broken"
	}
	return fmt.Sprintf("%d of %d persistent disks intact, %d of %d etcd members as before", len(s.Disks), len(s.Disks), len(s.Etcd), len(s.Etcd))
}

// unharmed compares a lab with its state at the start.
func unharmed(before, now sim.State) error {
	errs := []error{sameDisks(before.Disks, now.Disks)}
	if len(before.Etcd) > 0 && !slices.Equal(before.Etcd, now.Etcd) {
		errs = append(errs, fault.Refusedf("the members of etcd are %s; before: %s", listed(now.Etcd), listed(before.Etcd)))
	}
	for _, broken := range now.Broken {
		errs = append(errs, fault.Refusedf("promise broken: %s", broken))
	}
	return errors.Join(errs...)
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// sameDisks compares what the datacentre hashed before and after.
func sameDisks(before, after map[string]string) error {
	var errs []error
	for _, serial := range slices.Sorted(maps.Keys(before)) {
		switch now, found := after[serial]; {
		case !found:
			errs = append(errs, fault.Refusedf("persistent disk %s is gone", serial))
		case now != before[serial]:
			errs = append(errs, fault.Refusedf("persistent disk %s has changed: %s, before %s", serial, now, before[serial]))
		}
	}
	return errors.Join(errs...)
}
