package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/telemetry"
)

// observe adds log, metrics and traces to every command.
func (g *globals) observe(root *cobra.Command, s *streams) {
	root.PersistentFlags().StringVar(&g.log, "log-file", "", "append a log to this `file`, as JSON lines")
	root.PersistentFlags().StringVar(&g.metrics, "metrics-file", "", "write metrics to this `file`, for node_exporter")
	root.PersistentFlags().StringVar(&g.progress, "progress", progressAuto, "`how` to show steps: auto (live on a terminal), live, plain or json")
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if err := s.setProgress(c.CommandPath(), g.progress); err != nil {
			return err
		}
		if s.telemetry != nil {
			return nil // a command that the demo runs
		}
		t, ctx, err := telemetry.Start(c.Context(), telemetry.Options{
			Command: c.CommandPath(), Version: version, LogFile: g.log, MetricsFile: g.metrics, Env: os.Getenv,
			Warn: s.warn,
		})
		if err != nil {
			return err
		}
		s.telemetry = t
		c.SetContext(ctx)
		return nil
	}
}
