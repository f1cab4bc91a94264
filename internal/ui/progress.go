package ui

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/step"
)

// Progress draws the events of a run as plain lines, one per thing that happened.
type Progress struct {
	p     page
	start time.Time
	began map[string]time.Time // by path, of steps that run
}

// NewProgress draws on w, which the caller keeps.
func NewProgress(w io.Writer) *Progress {
	return &Progress{p: page{w: w, colour: IsTerminal(w) && os.Getenv("NO_COLOR") == ""}, start: time.Now(), began: map[string]time.Time{}}
}

// Emit draws one event; the step engine calls it one event at a time.
func (p *Progress) Emit(e step.Event) {
	at := time.Since(p.start).Round(time.Second)
	indent := strings.Repeat("  ", strings.Count(e.Path, "/"))
	line := func(mark, colour, text string) {
		p.p.line("%6s  %s%s %s", at, indent, p.p.paint(colour, mark), text)
	}
	switch e.Status {
	case step.Started:
		p.began[e.Path] = time.Now()
		line("▸", yellow, e.Title)
	case step.Note:
		line("·", "2", e.Text)
	case step.Skipped:
		line("✓", green, fmt.Sprintf("%s: %s", e.Title, e.Text))
	case step.Done:
		// What was over at once has its line already.
		if took := time.Since(p.began[e.Path]).Round(time.Second); took > 0 {
			line("✓", green, fmt.Sprintf("%s (%s)", e.Title, took))
		}
	case step.Failed:
		// The whole error is printed once, at the end, with its hints.
		line("✗", red, e.Title)
	case step.Stopped:
		line("✗", yellow, e.Title+": stopped before it was done")
	case step.NotStarted:
		line("-", "2", e.Title+": not started")
	}
}
