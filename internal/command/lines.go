package command

import (
	"bytes"
	"strings"

	"github.com/recast-sh/recast/internal/foreign"
)

const (
	keptLines = 8   // shown of a line
	lineBytes = 400 // that are shown of a line
)

// Lines passes on a program's output, line by line, and remembers the last lines. The zero
// value is ready to use.
type Lines struct {
	Note func(line string)      // may be nil
	Drop func(line string) bool // says whether to skip a line, which includes its indent; may be nil

	partial []byte
	cut     bool // the rest of an overlong line is being dropped
	kept    []string
}

// Write never fails: a program must not be stopped because of its output.
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

// End treats the bytes since the last line feed as a line.
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

// Last is the last few lines, joined into one; "" if there was no output.
func (l *Lines) Last() string { return strings.Join(l.kept, "; ") }

// LastCleaned is Last of what clean makes of those lines: joined, the secret of one would hide the next.
func (l *Lines) LastCleaned(clean func(text string) string) string {
	return strings.ReplaceAll(clean(strings.Join(l.kept, "\n")), "\n", "; ")
}
