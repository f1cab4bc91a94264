// Package ui draws what the other packages return: events as they happen on
// stderr, answers on stdout as text for people or JSON for scripts.
package ui

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"golang.org/x/term"
)

// IsTerminal says whether somebody sits at the other end of a file, or of what stands for one.
func IsTerminal(f any) bool {
	file, ok := f.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(file.Fd()))
}

// write prints v as JSON, or as text by draw.
func write(w io.Writer, format string, v any, draw func(*page)) error {
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
	p := newPage(w)
	draw(p)
	return p.err
}

// page is text output that remembers its first error.
type page struct {
	w       io.Writer
	colour  bool
	columns int // where long lines are broken; 0: nowhere
	err     error
}

func newPage(w io.Writer) *page {
	return &page{w: w, colour: coloured(w), columns: columnsOf(w)}
}

func (p *page) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, Tame(fmt.Sprintf(format+"\n", args...)))
	}
}

// short cuts a digest or ID to what people compare by eye.
func short(id string) string {
	for _, p := range []string{"sha256:", "sha256-"} {
		if hex, ok := strings.CutPrefix(id, p); ok {
			return p + hex[:min(12, len(hex))]
		}
	}
	return id[:min(12, len(id))]
}
