package main

import (
	"bytes"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newHistoryCmd(s *streams, g *globals) *cobra.Command {
	var out string
	var limit int
	c := &cobra.Command{
		Use: "history [RUN]", Short: "Past runs: when, what, how long each node was away",
		Long: `List the runs that began on this machine, newest first: what they brought the
cluster to, how they ended, how many nodes were done, how long the run took and
how long a node was away at most. With a run, or a part of its ID that no other
has, say all of that one: who ran it, what changed in the lock, each node with its
stages, errors with what to do, hooks.

It is read from .recast/runs and asks nobody, so it works while everything is down.
Runs of other machines are on those: in CI, keep .recast/reports as an artefact, and
not .recast as a whole, for journals hold machine configurations. The last 100 runs that have ended
stay, and those whose old system disks are still parked; a roll that ends well
removes older ones.`,
		Example: `  recast history
  recast history 3f2a          # the run whose ID ends so
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
				runs, problems := p.PastRuns(past())
				h := ui.HistoryOf(runs, problems, limit, logOf, hide.Text)
				return hiding(s.out, out, hide, func(w io.Writer) error { return ui.WriteHistory(w, out, h) })
			}
			run, err := p.PastRun(args[0], past())
			if err != nil {
				return err
			}
			told, err := story.Read(os.DirFS(run.Dir))
			if err != nil {
				run.Problems = append(run.Problems, err.Error())
			}
			page := p.Page(run.ID)
			if _, err := os.Stat(page); err != nil {
				page = "" // recast report makes one
			}
			r := ui.Tell(run, told, nearby(page), hide.Text)
			return hiding(s.out, out, hide, func(w io.Writer) error { return ui.WriteRun(w, out, r) })
		},
	}
	c.ValidArgsFunction = g.completeRuns
	c.Flags().StringVarP(&out, "output", "o", "text", "text or json")
	c.Flags().IntVar(&limit, "limit", 20, "how many `runs` to list, newest first; 0: all")
	return c
}

// logOf reads what the log of a run tells: of one that can't be read, what comes before that.
func logOf(run pipeline.PastRun) story.Story {
	told, _ := story.Read(os.DirFS(run.Dir)) // recast history RUN says why
	return told
}

// hiding takes secrets out of all that is printed as JSON, which holds whatever a
// journal does. Of text each part was looked at before its lines were broken.
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

// completeRuns offers the IDs of past runs, with what they are about.
func (g *globals) completeRuns(_ *cobra.Command, args []string, _ string) (ids []cobra.Completion, _ cobra.ShellCompDirective) {
	p, err := g.open()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	runs, _ := p.PastRuns(past()) // what can't be read is not offered
	for _, r := range runs {
		ids = append(ids, cobra.CompletionWithDesc(r.ID, r.Command()+", "+r.Result))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// past says how the processes of past runs are told from this one.
func past() pipeline.PastOptions {
	return pipeline.PastOptions{Holder: holder(), Dead: dead}
}
