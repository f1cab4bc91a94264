// Command gatemutants proves that every line of a gate has a test that is run by make
// test: it takes each out, one after the other, runs the tests of its package, and
// prints which of them fails. It fails where none does.
//
//	gatemutants [-slice 4 -seed 1] [-only park.go]
//
// A gate is a function that refuses before something is deleted, created, handed over or
// applied: one whose name begins with require, or that gates.go names. A mutant is a
// condition of it that lets everything through, or a call of it that is not made.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("gatemutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	slice := flags.Int("slice", 1, "every n-th mutant only")
	seed := flags.Int("seed", 1, "which of them")
	only := flags.String("only", "", "mutants whose line of the table has this in it")
	if err := flags.Parse(args); err != nil {
		return 3
	}
	if *slice < 1 {
		fmt.Fprintln(stderr, "error: -slice: every n-th mutant, from 1")
		return 3
	}
	began := time.Now()
	scratch, err := os.MkdirTemp("", "gatemutants")
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	defer os.RemoveAll(scratch)
	all, err := build(scratch)
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	all = slices.DeleteFunc(all, func(m mutant) bool {
		return (m.id-*seed)%*slice != 0 || !strings.Contains(m.String(), *only)
	})
	survive, by := 0, map[string]int{}
	for i, ran := range runAll(scratch, all) {
		caught := <-ran
		fmt.Fprintf(stdout, "%s  %s\n", all[i], caught)
		if by[caught]++; caught == survived || caught == noVerdict {
			survive++
		}
	}
	fmt.Fprintln(stdout)
	for _, test := range slices.SortedFunc(maps.Keys(by), func(a, b string) int { return by[b] - by[a] }) {
		fmt.Fprintf(stdout, "%4d  %s\n", by[test], test)
	}
	fmt.Fprintf(stdout, "gate-mutants: %d mutants, %d survive, %d s\n", len(all), survive, int(time.Since(began).Seconds()))
	if survive > 0 || len(all) == 0 {
		return 1
	}
	return 0
}

// These stand where the table names a test.
const (
	survived  = "NO TEST FAILS"
	noVerdict = "THE TESTS DIE" // they did not run, or to no end of theirs: this proves nothing
)

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d  %s  %s", m.at.Filename, m.at.Line, m.gate, m.what)
}

func program(scratch string, room int) string {
	return filepath.Join(scratch, strconv.Itoa(room)+".test")
}

// build compiles the tests of each room with all mutants in it, and runs them once
// without any.
func build(scratch string) (all []mutant, err error) {
	root, err := filepath.Abs(".")
	if err != nil {
		return nil, err
	}
	if err := everyGateHasARoom(root); err != nil {
		return nil, err
	}
	for number, r := range rooms {
		files, found, err := mutate(root, number, len(all)+1)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
		replace := map[string]string{}
		for path, text := range files {
			copied := filepath.Join(scratch, fmt.Sprintf("%d-%d.go", number, len(replace)))
			if err := os.WriteFile(copied, text, 0o600); err != nil {
				return nil, err
			}
			replace[path] = copied
		}
		text, err := json.Marshal(map[string]any{"Replace": replace})
		if err != nil {
			return nil, err
		}
		overlay := program(scratch, number) + ".json"
		if err := os.WriteFile(overlay, text, 0o600); err != nil {
			return nil, err
		}
		out, err := exec.CommandContext(context.Background(), "go", "test", "-c", "-overlay", overlay, "-o", program(scratch, number), "./"+r.dir).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("the mutants of %s do not compile: %w\n%s", r.dir, err, out)
		}
		if by := (mutant{room: number}).run(scratch); by != survived {
			return nil, fmt.Errorf("%s fails without a mutant: %s", r.dir, by)
		}
	}
	return all, nil
}

// runAll tells of each mutant which test fails with it, as many at a time as there are processors.
func runAll(scratch string, all []mutant) []chan string {
	caught := make([]chan string, len(all))
	for i := range all {
		caught[i] = make(chan string, 1)
	}
	var next atomic.Int32
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for i := int(next.Add(1)) - 1; i < len(all); i = int(next.Add(1)) - 1 {
				caught[i] <- all[i].run(scratch)
			}
		}()
	}
	return caught
}

// failed is how go test names a test that fails, runs when the time is over, or is on
// the stack of a panic.
var failed = regexp.MustCompile(`(?:--- FAIL: |\n\t|\.)((?:Test|Check)[^\s(]+?)(?: \(|\.func|\[\.\.\.\])`)

// run runs the tests of a mutant's room with it, first those that are made for its gates.
func (m mutant) run(scratch string) (by string) {
	if by = m.runSome(scratch, rooms[m.room].tables); by == survived {
		by = m.runSome(scratch, ".")
	}
	return by
}

func (m mutant) runSome(scratch, tests string) (by string) {
	cmd := exec.CommandContext(context.Background(), program(scratch, m.room), "-test.short", "-test.failfast", "-test.timeout", "60s", "-test.run", tests)
	cmd.Dir = rooms[m.room].dir
	cmd.Env = append(os.Environ(), variable+"="+strconv.Itoa(m.id))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return survived
	}
	by = noVerdict
	for i, match := range failed.FindAllSubmatch(out, 2) {
		test := string(match[1])
		if i == 0 || strings.HasPrefix(test, by+"/") {
			by = test
		}
	}
	return by
}
