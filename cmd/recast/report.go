package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/browser"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/report"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

// htmlPage is where the report of a run goes.
type htmlPage struct {
	file string // "-": stdout; "": below .recast/reports
	open bool   // in a browser
}

func (h htmlPage) write(ctx context.Context, s *streams, p pipeline.Project, run past.Run) error {
	file := cmp.Or(h.file, p.Page(run.ID))
	if file == "-" {
		return report.Write(s.out, drawn(run))
	}
	if err := savePage(file, run); err != nil {
		return fault.WithHint(err, "recast history RUN --html FILE writes it elsewhere, --html - to stdout")
	}
	if _, err := fmt.Fprintln(s.out, nearby(file)); err != nil {
		return err
	}
	if h.open {
		return browser.Show(ctx, browser.Opener(), file)
	}
	return nil
}

// drawn collects what the report of a run is made of. If the log can't be read, the
// report says so.
func drawn(run past.Run) report.Run {
	log, err := story.ReadDirs(run.Dirs)
	if err != nil {
		run.Problems = append(run.Problems, err.Error())
	}
	return report.Run{Past: run, Story: log, Now: time.Now(), Version: version, Hide: redact.New(secretsHere()).Text}
}

// savePage writes the report of a run to a file. It creates the directory if needed.
func savePage(file string, run past.Run) error {
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
		run, err := p.Runs().Find(id, thisProcess())
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
