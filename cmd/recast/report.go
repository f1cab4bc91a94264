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
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func newReportCmd(s *streams, g *globals) *cobra.Command {
	var file, open string
	c := &cobra.Command{
		Use: "report [RUN]", Short: "Draw a run as one HTML file",
		Long: `Draw a run, by default the last one, as one HTML file: each node with its stages
and its outage, etcd and Ready nodes meanwhile, the plan as it was, what the lock
changed, hooks with their output, errors with what to do about them. The file
fetches nothing from anywhere, needs no script, and can be read on a phone and
printed; what looks like a secret is taken out. Its name is printed on stdout.

Every roll writes it at its end, to .recast/reports/RUN.html. Here it is drawn anew
from the journal and the log of the run: of one that was killed, or still runs,
too, as far as it came. Nobody is asked, so it works while everything is down.`,
		Example: `  recast report                     # the last run
  recast report 3f2a                # the run whose ID ends so
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
			run, err := p.PastRun(id, past())
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
	c.Flags().StringVar(&open, "open", "auto", "open it in a browser: yes, no, or auto: where somebody sits at a screen")
	return c
}

// drawn is what a report of the run is made of. A log that can't be read is among
// what is missing from it.
func drawn(run pipeline.PastRun) report.Run {
	told, err := story.Read(os.DirFS(run.Dir))
	if err != nil {
		run.Problems = append(run.Problems, err.Error())
	}
	return report.Run{Past: run, Story: told, Now: time.Now(), Version: version, Hide: redact.New(secretsHere()).Text}
}

// savePage draws a run into a file. Its directory is made where there is none.
func savePage(file string, run pipeline.PastRun) error {
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err == nil {
		err = saveFile(file, func(w io.Writer) error { return report.Write(w, drawn(run)) })
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// savePages writes the reports of the runs that a command has worked on, and returns
// their files. One that can't be written is warned of: the run is over.
func savePages(s *streams, p pipeline.Project, rep pipeline.Report) (files []string) {
	for _, id := range append(slices.Clone(rep.Resumed), rep.Run) {
		if id == "" || !p.HasRun(id) {
			continue // it only finished an earlier one
		}
		run, err := p.PastRun(id, past())
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

// nearby is a path as a person would type it here.
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

// hasScreen says whether a browser would open before the eyes of who typed this.
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

// showWithin is how long an opener may take to say that it can't. One that is still
// there then is the browser itself.
const showWithin = 3 * time.Second

// desktopEnv are the variables by which a browser is found and finds its screen.
var desktopEnv = []string{
	"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS", "BROWSER", "DESKTOP_SESSION", "KDE_*", "GNOME_*", "WSL_*", "WSLENV",
}

// show opens a file before whoever typed this. A browser that is started by it stays,
// and no Ctrl-C that is meant for recast ends it: it is in a group of its own, and
// holds no pipe that would have to be read to its end.
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
		return fault.WithHint(fmt.Errorf("open the report: %s: %w", opener, err), "the report is written: open it by hand; --open no leaves that alone")
	}
	return nil
}

// tryShow is show where nobody has asked for it: that it can't is no failure.
func (s *streams) tryShow(ctx context.Context, opener, file string) {
	if err := show(ctx, opener, file); err != nil {
		fmt.Fprintf(s.err, "warning: %v; the report is written: open it by hand\n", err)
	}
}
