package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/report"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newReportCmd(s *streams, g *globals) *cobra.Command {
	var file, open string
	c := &cobra.Command{
		Use: "report [RUN]", Short: "Write the report of a run as one HTML file",
		Long: `Write the report of a run, by default the last one, as one HTML file: each node with
its stages and its outage, etcd and Ready nodes over time, the plan, what the lock
changed, hooks with their output, errors with what to do about them. The file loads
nothing from the network and needs no script; it can be read on a phone and printed.
What looks like a secret is removed. The file name is printed on stdout.

Every roll writes its report at its end, to .recast/reports/RUN.html. This command
writes it again from the journal and the log of the run; that also works for a run
that was killed or still runs, as far as it got. No server is contacted, so it works
while everything is down.`,
		Example: `  recast report                     # the last run
  recast report 3f2a                # the run whose ID ends with 3f2a
  recast report --output - | gzip >report.html.gz`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if !slices.Contains([]string{"auto", "yes", "no"}, open) {
				return errUsage{fmt.Errorf("--open %q: use one of auto, yes, no", open)}
			}
			p, err := g.open()
			if err != nil {
				return err
			}
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			run, err := p.Runs().Find(id, past())
			if err != nil {
				return err
			}
			if file == "-" {
				return report.Write(s.out, drawn(run))
			}
			if file == "" {
				file = p.Page(run.ID)
			}
			if err := savePage(file, run); err != nil {
				return fault.WithHint(err, "--output FILE writes it elsewhere, --output - to stdout")
			}
			if _, err := fmt.Fprintln(s.out, nearby(file)); err != nil {
				return err
			}
			switch {
			case open == "yes":
				return show(c.Context(), opener(), file)
			case open == "auto" && hasScreen(s):
				s.tryShow(c.Context(), opener(), file)
			}
			return nil
		},
	}
	c.ValidArgsFunction = g.completeRuns
	c.Flags().StringVar(&file, "output", "", "write to this `file`; -: to stdout (default: .recast/reports/RUN.html)")
	c.Flags().StringVar(&open, "open", "auto", "open it in a browser: yes, no, or auto (if this is a graphical session)")
	return c
}

// drawn collects what the report of a run is made of. If the log can't be read, the
// report says so.
func drawn(run pipeline.PastRun) report.Run {
	log, err := story.Read(os.DirFS(run.Dir))
	if err != nil {
		run.Problems = append(run.Problems, err.Error())
	}
	return report.Run{Past: run, Story: log, Now: time.Now(), Version: version, Hide: redact.New(secretsHere()).Text}
}

// savePage writes the report of a run to a file. It creates the directory if needed.
func savePage(file string, run pipeline.PastRun) error {
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err == nil {
		err = savefile.Write(file, func(w io.Writer) error { return report.Write(w, drawn(run)) })
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// savePages writes the reports of the runs that a command worked on, and returns their
// files. A report that can't be written is only a warning: the run is over.
func savePages(s *streams, p pipeline.Project, rep pipeline.Report) (files []string) {
	for _, id := range append(slices.Clone(rep.Resumed), rep.Run) {
		if id == "" || !p.Runs().Has(id) {
			continue // it only finished an earlier one
		}
		run, err := p.Runs().Find(id, past())
		if err == nil {
			err = savePage(p.Page(id), run)
		}
		if err != nil {
			fmt.Fprintf(s.err, "warning: no report of run %s: %v\n", id, err)
			continue
		}
		files = append(files, nearby(p.Page(id)))
	}
	return files
}

// nearby is a path relative to the working directory, if it is below that.
func nearby(path string) string {
	here, err := os.Getwd()
	if err != nil || !filepath.IsAbs(path) {
		return path
	}
	if short, err := filepath.Rel(here, path); err == nil && !strings.HasPrefix(short, "..") {
		return short
	}
	return path
}

// hasScreen says whether the user would see a browser that opens on this machine.
func hasScreen(s *streams) bool {
	if !ui.IsTerminal(s.out) || os.Getenv("SSH_CONNECTION") != "" || os.Getenv("CI") != "" {
		return false
	}
	return runtime.GOOS == "darwin" || os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != ""
}

// opener is the program that opens a file as a double click on it does.
func opener() string {
	if runtime.GOOS == "darwin" {
		return "open"
	}
	return "xdg-open"
}

// showWithin is how long to wait for an opener to fail. If it still runs then, it is
// the browser itself.
const showWithin = 3 * time.Second

// desktopEnv are the variables that are needed to find a browser and its screen.
var desktopEnv = []string{
	"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS", "BROWSER", "DESKTOP_SESSION", "KDE_*", "GNOME_*", "WSL_*", "WSLENV",
}

// show opens a file for the user. A browser that this starts keeps running, and Ctrl-C
// for recast does not end it: it is in its own process group and holds no pipe of ours.
func show(ctx context.Context, opener, file string) error {
	c := exec.Command(opener, file)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Env = command.Environ(os.Environ(), desktopEnv)
	err := c.Start()
	if err == nil {
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		select {
		case err = <-ended:
		case <-time.After(showWithin):
		case <-ctx.Done():
		}
	}
	if err != nil {
		return fault.WithHint(fmt.Errorf("open the report: %s: %w", opener, err), "the report is written: open it by hand; --open no skips this")
	}
	return nil
}

// tryShow is show if the user did not ask for it: an error is only a warning.
func (s *streams) tryShow(ctx context.Context, opener, file string) {
	if err := show(ctx, opener, file); err != nil {
		fmt.Fprintf(s.err, "warning: %v; the report is written: open it by hand\n", err)
	}
}
