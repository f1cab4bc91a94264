// Command testsummary reads the output of go test -json, shows every package when it ends
// and the output of failed tests, and ends with one line of figures:
//
//	test: 412 tests in 31 packages, 0 failed, 0 skipped, 48 s
//
// With -tests it shows every test when it ends, and why tests were skipped. With -story it shows the tests' output as it is
// printed. A test adds a figure with t.Attr: numbers of the same key are summed. A figure whose key has a colon
// ("fault:no-quorum") is shown only with its test. With -figures the last line has only the named figures, and the first of
// them must not be 0:
//
//	schema: 48211 requests, 0 violations
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
	if err := flags.Parse(args); err != nil {
		return 3
	}
	start := time.Now()
	s := newSummary(stdout)
	s.tests, s.story = *tests, *story
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
