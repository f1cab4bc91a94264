package ui

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// width is where long text is broken, whatever the terminal: a plan is pasted
// into tickets, and read on phones.
const width = 110

// wrapped prints text behind a lead, broken at spaces; the lines after the first
// begin with indent.
func (p *page) wrapped(lead, indent, text string) {
	line, begun := lead, false
	for paragraph := range strings.Lines(text) {
		if begun {
			p.line("%s", line)
			line, begun = indent, false
		}
		for word := range strings.FieldsSeq(paragraph) {
			if begun && columns(line)+1+columns(word) > width {
				p.line("%s", line)
				line, begun = indent, false
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

var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// columns is how wide a text is on a terminal.
func columns(s string) int { return utf8.RuneCountInString(colours.ReplaceAllString(s, "")) }
