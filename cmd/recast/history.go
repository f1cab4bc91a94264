package main

import (
	"bytes"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newHistoryCmd(s *streams, g *globals) *cobra.Command {
	var out string
	var limit int
	c := &cobra.Command{
		Use: "history [RUN]", Short: "List past runs: when, what, how long each node was down",
		Long: `List the runs that were started on this machine, newest first: their target, how they
ended, how many nodes were finished, how long the run took, and the longest time that
a node was down. With a run ID, or a unique part of one, show that run in detail: who
ran it, what changed in the lock, each node with its stages, errors with what to do,
hooks.

Everything is read from .recast/runs, so it works while everything is down. Runs of
other machines are stored there: in CI, keep .recast/reports as an artefact, but not
all of .recast, since journals hold machine configurations. The last 100 finished runs
are kept, and those whose old system disks are still parked; a successful roll removes
older ones.`,
		Example: `  recast history
  recast history 3f2a          # the run whose ID ends with 3f2a
  recast history -o json | jq '.runs[] | select(.result != "done")'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format(out, "text", "json"); err != nil {
				return err
			}
			p, err := g.open()
			if err != nil {
				return err
			}
			hide := redact.New(secretsHere())
			if len(args) == 0 {
				runs, problems := p.Runs().All(past())
				h := ui.HistoryOf(runs, problems, limit, logOf, hide.Text)
				return hiding(s.out, out, hide, func(w io.Writer) error { return ui.WriteHistory(w, out, h) })
			}
			run, err := p.Runs().Find(args[0], past())
			if err != nil {
				return err
			}
			log, err := story.Read(os.DirFS(run.Dir))
			if err != nil {
				run.Problems = append(run.Problems, err.Error())
			}
			page := p.Page(run.ID)
			if _, err := os.Stat(page); err != nil {
				page = "" // recast report creates it
			}
			r := ui.Tell(run, log, nearby(page), hide.Text)
			return hiding(s.out, out, hide, func(w io.Writer) error { return ui.WriteRun(w, out, r) })
		},
	}
	c.ValidArgsFunction = g.completeRuns
	c.Flags().StringVarP(&out, "output", "o", "text", "text or json")
	c.Flags().IntVar(&limit, "limit", 20, "how many `runs` to list, newest first; 0: all")
	return c
}

// logOf reads the log of a run, up to the first part that can't be read.
func logOf(run pipeline.PastRun) story.Story {
	log, _ := story.Read(os.DirFS(run.Dir)) // recast history RUN says why
	return log
}

// hiding removes secrets from JSON output, which holds everything that a journal holds.
// Text was redacted already, before its lines were wrapped.
func hiding(w io.Writer, format string, hide redact.Redactor, print func(io.Writer) error) error {
	if format != "json" {
		return print(w)
	}
	var b bytes.Buffer
	if err := print(&b); err != nil {
		return err
	}
	_, err := w.Write(hide.JSON(b.Bytes()))
	return err
}

// completeRuns completes the IDs of past runs, each with its command and result.
func (g *globals) completeRuns(_ *cobra.Command, args []string, _ string) (ids []cobra.Completion, _ cobra.ShellCompDirective) {
	p, err := g.open()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	runs, _ := p.Runs().All(past()) // runs that can't be read are not offered
	for _, r := range runs {
		ids = append(ids, cobra.CompletionWithDesc(r.ID, r.Command()+", "+r.Result))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// past says how to tell whether the process of a past run is still alive.
func past() pipeline.PastOptions {
	return pipeline.PastOptions{Holder: holder.This(), Dead: holder.Dead}
}
