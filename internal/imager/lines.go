package imager

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"unicode"
)

const (
	keptLines = 8   // in an error
	lineBytes = 400 // that are shown of a line
)

// lines passes on what a program prints, line by line, and remembers the last of them.
type lines struct {
	note    func(string)
	partial []byte
	cut     bool // the rest of an overlong line is being dropped
	dump    bool // the imager prints its profile, which says nothing new
	heading string
	kept    []string
}

var (
	escape = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")
	// siderolabs/talos pkg/imager/imager.go prints "profile ready:", then the profile.
	yamlLine = regexp.MustCompile(`^(\s|- |[A-Za-z]+:( |$))`)
)

// Write never fails: a program isn't stopped for what it prints.
func (l *lines) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		if !l.cut {
			l.partial = append(l.partial, line[:min(len(line), lineBytes-len(l.partial))]...)
			l.cut = len(l.partial) == lineBytes
		}
		if ended {
			l.end()
		}
		rest = after
	}
	return len(p), nil
}

// end takes what came so far for a whole line.
func (l *lines) end() {
	line := escape.ReplaceAllString(string(l.partial), "")
	line = strings.TrimRightFunc(strings.Map(printable, line), unicode.IsSpace)
	l.partial, l.cut = l.partial[:0], false
	if line == "" || l.dump && yamlLine.MatchString(line) {
		return
	}
	l.dump = line == "profile ready:"
	// The imager repeats a heading above each line that it indents.
	if l.dump || line == l.heading {
		return
	}
	if !strings.HasPrefix(line, " ") {
		l.heading = line
	}
	line = strings.TrimSpace(line)
	l.kept = append(l.kept, line)
	l.kept = l.kept[max(0, len(l.kept)-keptLines):]
	if l.note != nil {
		l.note(line)
	}
}

func printable(r rune) rune {
	switch {
	case r == '\t':
		return ' '
	case !unicode.IsPrint(r):
		return -1
	}
	return r
}

// last is what was printed last; nil if nothing was.
func (l *lines) last() error {
	if len(l.kept) == 0 {
		return nil
	}
	return errors.New("it said last: " + strings.Join(l.kept, "; "))
}
