// Command longtests prints what go test needs to run those tests of the given packages
// of which -short leaves something out: a regular expression and their packages.
//
//	longtests ./cmd/... ./internal/...
//	-run ^(TestCrash|TestRecover)$ example.org/x/internal/sim
//
// They are the tests that use testing.Short, or a function that does. With -list it
// prints a line for each of them, with all that is between; with -names the package and
// the name of each, for testsummary -later.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("longtests", flag.ContinueOnError)
	flags.SetOutput(stderr)
	list := flags.Bool("list", false, "print a line for each test, with how it comes to use testing.Short")
	names := flags.Bool("names", false, "print a line for each test: its package and its name")
	if err := flags.Parse(args); err != nil {
		return 3
	}
	tests, err := find(flags.Args()...)
	if err == nil && len(tests) == 0 && !*names {
		err = fmt.Errorf("no test of %s uses %s", strings.Join(flags.Args(), " "), short)
	}
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "error:", err)
		return 1
	case *list:
		for _, t := range tests {
			fmt.Fprintln(stdout, t.pkg, t.name, strings.Join(t.by, " < "))
		}
	case *names:
		for _, t := range tests {
			fmt.Fprintln(stdout, t.pkg, t.name)
		}
	default:
		fmt.Fprintln(stdout, arguments(tests))
	}
	return 0
}

// arguments are those of go test. One expression is for all packages, so that they run
// beside one another: a test with the name of another package's long test runs, too.
func arguments(tests []test) string {
	var names, dirs []string
	for _, t := range tests {
		names, dirs = append(names, t.name), append(dirs, t.pkg)
	}
	slices.Sort(names)
	return "-run ^(" + strings.Join(slices.Compact(names), "|") + ")$ " + strings.Join(slices.Compact(dirs), " ")
}
