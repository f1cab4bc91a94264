package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Problem is one thing wrong with the file.
type Problem struct {
	File         string
	Line, Column int    // counted from 1
	Path         string // "nodes[2].vmid"; "" for the whole file
	Message      string
}

// String is the problem on one line: file:line:column: path: message.
func (p Problem) String() string {
	where := fmt.Sprintf("%s:%d:%d: ", p.File, p.Line, p.Column)
	if p.Path != "" {
		where += p.Path + ": "
	}
	return where + p.Message
}

// Problems is everything wrong with a file, in the order of the file. Load and
// Parse return it, with kind fault.Config.
type Problems []Problem

func (ps Problems) Error() string {
	var b strings.Builder
	for _, p := range ps {
		fmt.Fprintln(&b, p)
	}
	if len(ps) == 1 {
		b.WriteString("1 problem")
	} else {
		fmt.Fprintf(&b, "%d problems", len(ps))
	}
	return b.String()
}

// report collects problems and the position of each path.
type report struct {
	file     string
	places   map[string]place
	problems Problems
	bad      map[string]bool // paths with a problem
}

func newReport(file string) *report {
	return &report{file: file, places: map[string]place{}, bad: map[string]bool{}}
}

// add reports a problem at the position of path. It drops a problem of a path that is
// bad already or lies in a bad section, since it only follows from that.
func (r *report) add(path, format string, args ...any) {
	for p := path; p != ""; p = parent(p) {
		if r.bad[p] {
			return
		}
	}
	r.addAt(nearest(r.places, path), path, format, args...)
}

func (r *report) addAt(at place, path, format string, args ...any) {
	r.bad[path] = true
	r.problems = append(r.problems, Problem{
		File: r.file, Line: at.line, Column: at.column, Path: path,
		Message: fmt.Sprintf(format, args...),
	})
}

// given says whether the file has a value at path.
func (r *report) given(path string) bool {
	_, ok := r.places[path]
	return ok
}

// line is the line of path, for messages that refer to it.
func (r *report) line(path string) int { return nearest(r.places, path).line }

// err returns the problems in the order of the file, or nil.
func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
	return r.problems
}

// quote shows a value of the file in a message: one line, not too long.
func quote(s string) string {
	if r := []rune(s); len(r) > 60 {
		s = string(r[:60]) + "…"
	}
	return strconv.Quote(s)
}
