package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/sim"
)

func newDemoCmd(p Program) *cobra.Command {
	var f labFlags
	c := &cobra.Command{
		Use: "demo", Short: "Show a whole roll in under a minute",
		Long: `Start a lab in a temporary directory, patch an extension that every node has (same
version, new digest), and roll it onto all nodes by recreating their VMs, with the
commands that a person would type. At the end the SHA-256 of every persistent disk's
bytes, computed by the datacentre, must be the same as before, and etcd must have the
same members.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return demo(c.Context(), p, f) },
	}
	f.register(c, 40, 3)
	return c
}

func demo(ctx context.Context, p Program, f labFlags) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	f.dir, err = os.MkdirTemp("", "recast-demo-")
	if err != nil {
		return fmt.Errorf("make a directory for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(f.dir)) }()
	d, err := openDirectory(f.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	lab, err := startLab(ctx, p, f, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	undo, err := setenv(lab.Env(f.dir))
	if err != nil {
		return err
	}
	defer undo()

	before := lab.State()
	config := filepath.Join(f.dir, "recast.yaml")
	for _, step := range []struct {
		args []string
		want error
	}{
		{[]string{"drift"}, nil},
		{[]string{"lab", "patch", sim.CommonExtension, "--dir", f.dir}, nil},
		{[]string{"lock", "--update"}, nil},
		{[]string{"drift"}, p.Differs},
		{[]string{"plan"}, nil},
		{[]string{"roll", "--yes"}, nil},
		{[]string{"drift"}, nil},
		{[]string{"status"}, nil},
	} {
		fmt.Fprintf(p.Out, "\n$ recast %s\n", strings.ReplaceAll(strings.Join(step.args, " "), f.dir, "lab"))
		if err := p.Run(ctx, append([]string{"--config", config}, step.args...)...); !errors.Is(err, step.want) {
			return fmt.Errorf("recast %s: %w", step.args[0], errors.Join(err, unexpected(step.want)))
		}
	}
	now := lab.State()
	fmt.Fprintln(p.Out, "\nSHA-256 of every persistent disk, computed by the datacentre:")
	for _, serial := range slices.Sorted(maps.Keys(before.Disks)) {
		fmt.Fprintf(p.Out, "  %-12s before %s\n  %-12s after  %s\n", serial, before.Disks[serial], "", now.Disks[serial])
	}
	if err := unharmed(before, now); err != nil {
		return err
	}
	fmt.Fprintf(p.Out, "demo: %s\n", figures(before))
	return nil
}

func unexpected(want error) error {
	if want == nil {
		return nil
	}
	return fmt.Errorf("expected: %w", want)
}

// setenv sets variables for the duration of the demo.
func setenv(env map[string]string) (undo func(), err error) {
	old := map[string]*string{}
	undo = func() {
		for name, value := range old {
			if value == nil {
				_ = os.Unsetenv(name) // it was unset before
			} else {
				_ = os.Setenv(name, *value) // it was set before
			}
		}
	}
	for name, value := range env {
		if was, set := os.LookupEnv(name); set {
			old[name] = &was
		} else {
			old[name] = nil
		}
		if err := os.Setenv(name, value); err != nil {
			return undo, fmt.Errorf("set %s: %w", name, err)
		}
	}
	return undo, nil
}
