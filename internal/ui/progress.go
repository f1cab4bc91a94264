package ui

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
)

// Progress prints the events of a run as plain lines, and records the result of each
// node.
type Progress struct {
	p     *page
	start time.Time
	noted map[string]string // by path, the last note
	width int               // of the column of nodes, as wide as the longest name so far
	run   story.Fold
}

// NewProgress draws on w, which the caller keeps.
func NewProgress(w io.Writer) *Progress {
	return &Progress{p: newPage(w), start: time.Now(), noted: map[string]string{}}
}

// Fared returns the results of the nodes that the run has started, in order. Call it after
// the run has ended.
func (p *Progress) Fared() Fared { return faredOf(p.run.Story) }

// Emit prints one event; the step engine calls it with one event at a time.
func (p *Progress) Emit(e step.Event) {
	s, _ := p.run.See(time.Now(), e)
	switch e.Status {
	case step.Started:
		p.line(e.Path, yellow, "▸", e.Title)
	case step.Note:
		if p.noted[e.Path] == e.Text {
			return // printed already
		}
		p.noted[e.Path] = e.Text
		p.line(e.Path, dim, "·", e.Text)
	case step.Skipped:
		p.line(e.Path, green, "✓", e.Title+": "+e.Text)
	case step.Done:
		// A step that ended at once has its line already.
		if took := s.Ended.Sub(s.Began).Round(time.Second); took > 0 {
			p.line(e.Path, green, "✓", fmt.Sprintf("%s (%s)", e.Title, took))
		}
	case step.Failed:
		// The whole error is printed once, at the end, with its hints.
		p.line(e.Path, red, "✗", e.Title)
	case step.Stopped:
		p.line(e.Path, yellow, "✗", e.Title+": stopped before it was done")
	case step.NotStarted:
		p.line(e.Path, dim, "-", e.Title+": not started")
	}
}

// line prints one line: time, node, indentation, text. Several nodes may be in progress at
// the same time, so every line starts with the node's name.
func (p *Progress) line(path string, mood Mood, mark, text string) {
	at := time.Since(p.start).Round(time.Second)
	_, node, below := planning.NodeOfStep(path)
	if strings.HasPrefix(path, "roll") {
		p.width = max(p.width, nodeColumn, utf8.RuneCountInString(node))
	}
	depth := strings.Count(path, "/")
	if node != "" {
		depth = len(below)
	}
	lead := fmt.Sprintf("%6s  ", at)
	if p.width > 0 {
		lead += fmt.Sprintf("%-*s  ", p.width, node)
	}
	// One event is one line, even if a foreign message contains line breaks.
	p.p.line("%s%s%s %s", lead, strings.Repeat("  ", depth), p.p.paint(mood, mark), strings.Join(strings.Fields(text), " "))
}

// nodeColumn is the initial width of the node column.
const nodeColumn = 8
