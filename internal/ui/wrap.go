package ui

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/recast-sh/recast/internal/foreign"
)

// readable is how wide text is at most on a terminal, and how long a list of
// reasons gets before each is on a line of its own.
const readable = 110

// columnsOf is how wide a terminal is, but no wider than is good to read; 0 for
// anything else: whoever greps a log wants to find a sentence in one piece.
func columnsOf(w any) int {
	file, ok := w.(interface{ Fd() uintptr })
	if !ok || !IsTerminal(file) {
		return 0
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return min(columns, readable)
}

// reasons puts each of a long list of reasons on a line of its own.
func reasons(text string) string {
	if columns(text) <= readable {
		return text
	}
	return strings.ReplaceAll(text, "; ", ";\n")
}

// wrapped prints text behind a lead, on a terminal broken at spaces. The lines
// after the first begin with indent.
func (p *page) wrapped(lead, indent, text string) {
	text = foreign.Lines(text) // before it is measured
	line, begun := lead, false
	next := func() {
		p.line("%s", line)
		line, begun = indent, false
	}
	for part := range strings.Lines(text) {
		if begun {
			next()
		}
		for word := range strings.FieldsSeq(part) {
			if begun && p.columns > 0 && columns(line+" "+word) > p.columns {
				next()
			}
			if begun {
				line += " "
			}
			line += word
			begun = true
		}
	}
	p.line("%s", strings.TrimRight(line, " "))
}

var colours = regexp.MustCompile(mark + "[0-9]+m")

// columns is how wide a text is on a terminal.
func columns(s string) int { return utf8.RuneCountInString(colours.ReplaceAllString(s, "")) }
