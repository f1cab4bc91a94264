package ui

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/recast-sh/recast/internal/foreign"
)

// readable is the maximum width of text on a terminal, and the length of a list of reasons
// from which on each gets its own line.
const readable = 110

// columnsOf is the width of a terminal, at most readable; 0 for anything else: a sentence
// in a log must stay on one line for grep.
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

// reasons puts each reason of a long list on its own line.
func reasons(text string) string {
	if columns(text) <= readable {
		return text
	}
	return strings.ReplaceAll(text, "; ", ";\n")
}

// wrapped prints text after a lead; on a terminal it breaks lines at spaces. Lines after
// the first start with indent.
func (p *page) wrapped(lead, indent, text string) {
	text = foreign.Lines(text) // before measuring
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

// columns is the width of a text on a terminal.
func columns(s string) int { return utf8.RuneCountInString(colours.ReplaceAllString(s, "")) }
