package main

import (
	"bytes"
	"io"
	"os"
	"strings"

	"github.com/recast-sh/recast/pipeline/past"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
)

func newHistoryCmd(s *streams, g *globals) *cobra.Command {
	var out string
	var limit int
	var page htmlPage
	c := &cobra.Command{
		Use: "history [RUN]", Short: "List past runs: when, what, how long each node was down",
		Long: `List past runs, newest first: their target, how they ended, how many nodes were
finished, how long the run took, and the longest time that a node was down. With a run
ID, or a unique part of one, show that run in detail: who ran it, what changed in the
lock, each node with its stages, errors with what to do, hooks.

--html writes that run, by default the last one, as one HTML file: each node with its
stages and its outage, etcd and Ready nodes over time, the plan, what the lock changed,
hooks with their output, errors. It loads nothing from the network and needs no script.
Every roll writes it at its end, to .recast/reports/RUN.html; --open writes that and
opens it in a browser, also for a run that was killed or still runs. What looks like a
secret is removed.

Runs of other machines come from images.mirror: every run is copied there while it
goes on, without secrets, so what a killed CI runner did can be read anywhere with
recast.yaml alone. history.share in recast.yaml says otherwise; a mirror that anyone
on the internet can read gets no runs. Runs of this machine, and those copied before,
are read from .recast, so it works while everything is down.

The mirror keeps the last 100 runs of a cluster. So does this machine, and those whose
old system disks are still parked; a successful roll removes older ones. In CI without
a mirror, keep .recast/reports as an artefact, but not all of .recast, since journals
hold machine configurations.`,
		Example: `  recast history
  recast history 3f2a          # the run whose ID ends with 3f2a
  recast history --open        # the report of the last run, in a browser
  recast history --html - | gzip >report.html.gz
  recast history -o json | jq '.runs[] | select(.result != "done")'`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: g.completeRuns,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := g.openWith(true)
			if err != nil {
				return err
			}
			hide := redact.New(secretsHere())
			html := page.open || page.file != ""
			fetchRuns(c.Context(), s, p, limit, s.warn)
			if len(args) == 0 && !html {
				runs, problems := p.Runs().All(thisProcess())
				h := ui.HistoryOf(runs, problems, limit, logOf, hide.Text)
				return hiding(s.out, out, hide, func(w io.Writer) error { return ui.WriteHistory(w, out, h) })
			}
			run, err := p.Runs().Find(strings.Join(args, ""), thisProcess())
			if err != nil {
				return err
			}
			if html {
				return page.write(c.Context(), s, p, run)
			}
			log, err := story.ReadDirs(run.Dirs)
			if err != nil {
				run.Problems = append(run.Problems, err.Error())
			}
			file := p.Page(run.ID)
			if _, err := os.Stat(file); err != nil {
				file = "" // --open creates it
			}
			r := ui.Tell(run, log, nearby(file), hide.Text)
			return hiding(s.out, out, hide, func(w io.Writer) error { return ui.WriteRun(w, out, r) })
		},
	}
	outputFlag(c, &out, "text", "json")
	c.Flags().IntVar(&limit, "limit", 20, "how many `runs` to list, newest first; 0: all")
	c.Flags().StringVar(&page.file, "html", "", "write the run as one HTML `file`; -: to stdout")
	c.Flags().BoolVar(&page.open, "open", false, "open the report of the run in a browser")
	return c
}

// logOf reads the log of a run, up to the first part that can't be read.
func logOf(run past.Run) story.Story {
	log, _ := story.ReadDirs(run.Dirs) // recast history RUN says why
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

// thisProcess says how to tell whether the process of a past run is still alive.
func thisProcess() past.Options {
	return past.Options{Holder: holder.This(), Dead: holder.Dead, Suspended: holder.Suspended}
}
