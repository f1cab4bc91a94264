package command

import (
	"bytes"
	"strings"

	"github.com/recast-sh/recast/internal/foreign"
)

const (
	keptLines = 8   // in an error
	lineBytes = 400 // that are shown of a line
)

// Lines passes on what a program prints, line by line, and remembers the last of
// them. Its zero value is ready to use.
type Lines struct {
	Note func(line string)      // nil: nobody is told
	Drop func(line string) bool // says of each line, with its indent, whether it is of no interest; nil: none is

	partial []byte
	cut     bool // the rest of an overlong line is being dropped
	kept    []string
}

// Write never fails: a program isn't stopped for what it prints.
func (l *Lines) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		if !l.cut {
			l.partial = append(l.partial, line[:min(len(line), lineBytes-len(l.partial))]...)
			l.cut = len(l.partial) == lineBytes
		}
		if ended {
			l.End()
		}
		rest = after
	}
	return len(p), nil
}

// End takes what came so far for a whole line.
func (l *Lines) End() {
	line := strings.TrimRight(foreign.Line(string(l.partial)), " ")
	l.partial, l.cut = l.partial[:0], false
	if line == "" || l.Drop != nil && l.Drop(line) {
		return
	}
	line = strings.TrimSpace(line)
	l.kept = append(l.kept, line)
	l.kept = l.kept[max(0, len(l.kept)-keptLines):]
	if l.Note != nil {
		l.Note(line)
	}
}

// Last is what was printed last, a few lines of it on one; "" if nothing was.
func (l *Lines) Last() string { return strings.Join(l.kept, "; ") }
