// Command testsummary reads the output of go test -json, shows every package when it ends
// and the output of failed tests, and ends with one line of figures:
//
//	test: 412 tests in 31 packages, 0 failed, 0 skipped, 48 s
//
// With -tests every test is shown as it ends, and what was skipped with its reason. With -story
// what tests print is shown as they print it, with the name of the test if it runs beside
// others. A test adds a figure of its own with t.Attr: numbers of the same key are summed.
// One whose key begins with "sum:" is in the last line alone; one that has another colon ("fault:no-quorum") is shown with its own test alone.
// With -figures the named ones alone make the last line, and the first of them may not be 0:
//
//	schema: 48211 requests, 0 violations
//
// A package or a test that has begun and does not end has failed, and so has a package in which no test
// has the name that was asked for. Where the environment has TESTS_COMPLETE=1, so has each test that is
// skipped, unless its reason is that it is long, not in this slice, or left to another run ("left to make
// mutants"): what it needs is not here.
//
// With -later, the lines of longtests -names, a test that was skipped has to be among
// those if its reason is that it is long: else nothing would ever run it.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("testsummary", flag.ContinueOnError)
	flags.SetOutput(stderr)
	name := flags.String("name", "test", "what the last line begins with")
	tests := flags.Bool("tests", false, "show every test as it ends (subtests only if skipped), and why one was skipped")
	story := flags.Bool("story", false, "show what tests print as they print it")
	figures := flags.String("figures", "", "figures, separated by commas, of which the last line is made (default: all)")
	var later map[string]bool
	flags.Func("later", "a line for each test that is left to another run: its package and its name", func(lines string) error {
		later = map[string]bool{}
		for line := range strings.Lines(lines) {
			later[strings.TrimSpace(line)] = true
		}
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return 3
	}
	start := time.Now()
	s := newSummary(stdout)
	s.tests, s.story, s.later = *tests, *story, later
	s.whole = os.Getenv("TESTS_COMPLETE") == "1"
	if *figures != "" {
		s.only = strings.Split(*figures, ",")
	}
	if err := s.read(stdin); err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	fmt.Fprintln(stdout, s.line(*name, time.Since(start)))
	if !s.passed() {
		return 1
	}
	return 0
}
