package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/telemetry"
)

// observe has every command told to machines: log, metrics, traces.
func (g *globals) observe(root *cobra.Command, s *streams) {
	root.PersistentFlags().StringVar(&g.log, "log-file", "", "append what happens to this `file`, in JSON lines (a run has a log beside its journal anyway)")
	root.PersistentFlags().StringVar(&g.metrics, "metrics-file", "", "write metrics to this `file` at the end, for node_exporter's textfile collector")
	root.PersistentFlags().StringVar(&g.progress, "progress", progressAuto, "how steps are told on stderr: `auto`, live, plain or json (auto: live on a terminal)")
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if err := s.tells(c.CommandPath(), g.progress); err != nil {
			return err
		}
		if s.telemetry != nil {
			return nil // a command of the demo is part of the demo
		}
		t, ctx, err := telemetry.Start(c.Context(), telemetry.Options{
			Command: c.CommandPath(), Version: version, LogFile: g.log, MetricsFile: g.metrics, Env: os.Getenv,
			Warn: func(text string) { fmt.Fprintf(s.err, "warning: %s\n", text) },
		})
		if err != nil {
			return err
		}
		s.telemetry = t
		c.SetContext(ctx)
		return nil
	}
}
