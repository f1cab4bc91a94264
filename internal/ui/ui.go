// Package ui prints what other packages return: a [Progress] prints events on stderr as
// they happen, and a Write function for each result prints it on stdout as text for
// people or JSON for scripts.
package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"golang.org/x/term"

	"github.com/recast-sh/recast/internal/foreign"
)

// IsTerminal says whether f is a terminal: a file, or something with the Fd of one.
func IsTerminal(f any) bool {
	file, ok := f.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(file.Fd()))
}

// write prints v as JSON, or as text with draw.
func write(w io.Writer, format string, v any, draw func(*page)) error {
	if format == "json" {
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			return err
		}
		_, err := w.Write(foreign.JSON(text.Bytes()))
		return err
	}
	p := newPage(w)
	draw(p)
	return p.err
}

// page is text output that remembers its first error.
type page struct {
	w       io.Writer
	colour  bool
	columns int // where to break long lines; 0: nowhere
	err     error
}

func newPage(w io.Writer) *page {
	p := &page{w: w, colour: coloured(w), columns: columnsOf(w)}
	if c, ok := w.(interface{ Clean() io.Writer }); ok {
		p.w = c.Clean()
	}
	return p
}

// line prints exactly one line, even if foreign text in it has line breaks or escape
// sequences. Only paint adds colours.
func (p *page) line(format string, args ...any) {
	if p.err == nil {
		line := foreign.Line(fmt.Sprintf(format, args...))
		_, p.err = io.WriteString(p.w, strings.ReplaceAll(line, mark, "\x1b[")+"\n")
	}
}

// lines prints text that may have several lines.
func (p *page) lines(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		p.line("%s", line)
	}
}
