package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// event is a line of go test -json; see go doc test2json.
type event struct {
	Action      string
	ImportPath  string // of build output
	Package     string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
	Key, Value  string // of an attr
}

// id names a test, or a package where the test is "".
type id struct{ pkg, test string }

type summary struct {
	out     io.Writer
	tests   bool                    // show each when it ends
	story   bool                    // show the tests' output as it is printed
	output  map[id]*strings.Builder // of unfinished tests
	builds  map[string]*strings.Builder
	ended   map[id]string   // the action that ended it
	parents map[id]struct{} // tests that have subtests
	figures map[string]int
	lines   map[id][]string // figures of tests that have not ended
	beside  map[id]bool     // tests that run beside others
	only    []string        // figures of which the last line is made; nil: everything
	later   map[string]bool // "package test" that may be skipped for being long; nil: all may
	racing  map[string]bool // packages in the midst of a race detector's report
	whole   bool            // a test may only be skipped for what another run does
}

func newSummary(out io.Writer) *summary {
	return &summary{
		out: out, output: map[id]*strings.Builder{}, builds: map[string]*strings.Builder{},
		ended: map[id]string{}, parents: map[id]struct{}{}, figures: map[string]int{}, lines: map[id][]string{}, beside: map[id]bool{}, racing: map[string]bool{},
	}
}

func (s *summary) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			s.add(line)
		}
		switch {
		case err == io.EOF:
			s.interrupted()
			return nil
		case err != nil:
			return fmt.Errorf("read test output: %w", err)
		}
	}
}

// interrupted has those tests fail that began and did not end, though their package may have.
func (s *summary) interrupted() {
	for at := range s.output {
		if at.test != "" && s.ended[at] == "" {
			s.ended[at] = "fail"
			fmt.Fprintf(s.out, "%s %s did not end\n", at.pkg, at.test)
		}
	}
	for at, action := range s.ended {
		if at.test == "" && action == "fail" && s.output[at] != nil {
			fmt.Fprintf(s.out, "%s did not end\n%s", at.pkg, s.output[at])
		}
	}
}

func (s *summary) add(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		fmt.Fprintf(s.out, "%s", line) // not from go test: show it
		return
	}
	at := id{e.Package, e.Test}
	switch e.Action {
	case "start": // until it ends, it has failed: go test may be killed
		s.ended[at] = "fail"
	case "output":
		if s.isRaceReport(e) {
			fmt.Fprint(s.out, e.Output)
			return
		}
		if s.story && isOwnLine(at, e.Output) {
			s.tell(at, strings.TrimPrefix(e.Output, "    "))
		}
		at.text(s.output).WriteString(e.Output)
	case "build-output":
		if s.builds[e.ImportPath] == nil {
			s.builds[e.ImportPath] = &strings.Builder{}
		}
		s.builds[e.ImportPath].WriteString(e.Output)
	case "attr":
		if n, err := strconv.Atoi(e.Value); err == nil {
			s.count(at, e.Key, n)
		}
	case "run":
		at.text(s.output)
		if i := strings.LastIndex(e.Test, "/"); i >= 0 {
			s.parents[id{e.Package, e.Test[:i]}] = struct{}{}
		}
	case "pause": // it continues with t.Parallel
		s.beside[at] = true
	case "pass", "fail", "skip":
		s.end(at, e)
	}
}

// tell shows a line of a test, with the test's name if it runs beside others.
func (s *summary) tell(at id, line string) {
	if s.beside[at] {
		line = at.test[strings.LastIndex(at.test, "/")+1:] + ": " + line
	}
	fmt.Fprint(s.out, line)
}

// count adds a figure to the sums and to those of its test. One whose key begins with
// "sum:" is for the sums alone; with another word before a colon it is for the test alone.
func (s *summary) count(at id, key string, n int) {
	kind, name, special := strings.Cut(key, ":")
	if !special {
		name = key
	}
	if !special || kind == "sum" {
		s.figures[name] += n
	}
	if !special || kind != "sum" {
		s.lines[at] = append(s.lines[at], strconv.Itoa(n)+" "+name)
	}
}

// isRaceReport says whether a line belongs to a report of the race detector. It goes to
// standard error, so that go test takes it for a line of whichever parallel test spoke
// last, which may well pass: it would not be shown with the one that fails.
func (s *summary) isRaceReport(e event) bool {
	switch {
	case strings.HasPrefix(e.Output, "WARNING: DATA RACE"):
		s.racing[e.Package] = true
	case s.racing[e.Package] && strings.HasPrefix(e.Output, "=================="):
		s.racing[e.Package] = false
		return true
	}
	return s.racing[e.Package]
}

// isOwnLine says whether a line is the test's own, or go test's error for it.
func isOwnLine(at id, line string) bool {
	said := strings.TrimLeft(line, " ")
	framed := strings.HasPrefix(said, "=== ") || strings.HasPrefix(said, "--- PASS") || strings.HasPrefix(said, "--- SKIP")
	return at.test != "" && !framed
}

func (at id) text(output map[id]*strings.Builder) *strings.Builder {
	if output[at] == nil {
		output[at] = &strings.Builder{}
	}
	return output[at]
}

// end shows a failed test, or a package with the tests that were interrupted by its
// failure.
func (s *summary) end(at id, e event) {
	s.ended[at] = e.Action
	if at.test != "" {
		if e.Action == "fail" && !s.story {
			fmt.Fprint(s.out, s.output[at])
		}
		if s.tests {
			s.show(at, e)
		}
		switch why := reason(s.output[at]); {
		case e.Action != "skip":
		case s.isLost(at):
			s.ended[at] = "fail"
			fmt.Fprintf(s.out, "%s %s is skipped here, and is not a test that is run later: %s\n", at.pkg, at.test, why)
		case s.whole && !strings.HasPrefix(why, "long") && !strings.HasPrefix(why, "not in this slice") && !strings.HasPrefix(why, "left to "):
			s.ended[at] = "fail"
			fmt.Fprintf(s.out, "%s %s can't be skipped where everything has to run: %s\n", at.pkg, at.test, why)
		}
		if figures := s.lines[at]; len(figures) > 0 && s.only == nil {
			fmt.Fprintf(s.out, "%s: %s\n", at.test, strings.Join(figures, ", "))
		}
		delete(s.output, at)
		return
	}
	if e.Action == "fail" {
		if b := s.builds[e.FailedBuild]; b != nil {
			fmt.Fprint(s.out, b)
			delete(s.builds, e.FailedBuild)
		}
		for _, open := range s.open(at.pkg) {
			s.ended[open] = "fail"
			if !s.story {
				fmt.Fprint(s.out, s.output[open])
			}
			delete(s.output, open)
		}
	}
	if text := s.output[at]; text != nil {
		if e.Action == "pass" && strings.Contains(text.String(), "[no tests to run]") {
			s.ended[at] = "fail"
			fmt.Fprintf(s.out, "%s: none of the named tests is there\n", at.pkg)
		}
		fmt.Fprint(s.out, lastLines(text.String(), e.Action))
		delete(s.output, at)
	}
}

// isLost says whether a skipped test is neither run later nor unable to run at all: a
// reason why a test cannot run here says what it needs, or what there is not.
func (s *summary) isLost(at id) bool {
	top, _, _ := strings.Cut(at.test, "/")
	return s.later != nil && !s.later[at.pkg+" "+top] && strings.HasPrefix(reason(s.output[at]), "long")
}

// show tells how a test ended that did not fail; subtests only if they were skipped.
func (s *summary) show(at id, e event) {
	switch {
	case e.Action == "skip":
		fmt.Fprintf(s.out, "skipped %s: %s\n", at.test, reason(s.output[at]))
	case e.Action == "pass" && !strings.Contains(at.test, "/"):
		fmt.Fprintf(s.out, "passed  %s (%.0f s)\n", at.test, e.Elapsed)
	}
}

// reason is what a test printed last before it was skipped, without the source position.
func reason(output *strings.Builder) string {
	var last string
	if output == nil {
		return ""
	}
	for line := range strings.Lines(output.String()) {
		// testscript logs its whole script behind the reason.
		if _, said, ok := strings.Cut(line, ".go:"); ok && !strings.HasPrefix(strings.TrimSpace(line), "testscript.go:") {
			_, last, _ = strings.Cut(strings.TrimSpace(said), ": ")
		}
	}
	return last
}

// open lists the unfinished tests of a package.
func (s *summary) open(pkg string) []id {
	var tests []id
	for at := range s.output {
		if at.pkg == pkg && at.test != "" && s.ended[at] == "" {
			tests = append(tests, at)
		}
	}
	slices.SortFunc(tests, func(a, b id) int { return strings.Compare(a.test, b.test) })
	return tests
}

// lastLines is a package's own output: all of it after a failure, else the line with its
// result.
func lastLines(text, action string) string {
	if action == "fail" {
		return text
	}
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	last := lines[len(lines)-1]
	if action == "skip" {
		return "" // no test files
	}
	return last + "\n"
}

// line is the last line: the figures. If figures are chosen and tests have failed, a line
// before it has the tests' results.
func (s *summary) line(name string, took time.Duration) string {
	if s.only == nil {
		return s.allFigures(name, took)
	}
	var chosen []string
	for _, key := range s.only {
		chosen = append(chosen, fmt.Sprintf("%d %s", s.figures[key], key))
	}
	line := name + ": " + strings.Join(chosen, ", ")
	if !s.testsPassed() {
		line = s.allFigures("tests", took) + "\n" + line
	}
	return line
}

func (s *summary) allFigures(name string, took time.Duration) string {
	count := map[string]int{}
	packages := map[string]struct{}{}
	for at, action := range s.ended {
		if at.test == "" {
			continue
		}
		packages[at.pkg] = struct{}{}
		if _, parent := s.parents[at]; !parent {
			count[action]++
			count["all"]++
		}
	}
	line := fmt.Sprintf("%s: %s in %s, %d failed, %d skipped",
		name, counted(count["all"], "test"), counted(len(packages), "package"), count["fail"], count["skip"])
	if n := s.brokenPackages(); n > 0 {
		line += ", " + counted(n, "package") + " failed"
	}
	for _, key := range slices.Sorted(maps.Keys(s.figures)) {
		line += fmt.Sprintf(", %d %s", s.figures[key], key)
	}
	return line + fmt.Sprintf(", %.0f s", took.Seconds())
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func (s *summary) brokenPackages() int {
	n := 0
	for at, action := range s.ended {
		if at.test == "" && action == "fail" {
			n++
		}
	}
	return n
}

// passed says whether anything ran, nothing failed, all that began has ended, and the required figure is not 0.
func (s *summary) passed() bool {
	return s.testsPassed() && (s.only == nil || s.figures[s.only[0]] > 0)
}

func (s *summary) testsPassed() bool {
	ran := false
	for at, action := range s.ended {
		if action == "fail" {
			return false
		}
		ran = ran || at.test != "" && action == "pass"
	}
	return ran
}
