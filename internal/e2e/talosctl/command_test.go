package talosctl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// command is one command line and its expected result. "{cp1}" and the like are replaced by
// addresses, "{dir}" by the lab's directory, "{talos}" by the version of Talos.
type command struct {
	line   string   // words without spaces; talosctl's unless it begins with "recast"
	out    []string // regular expressions that stdout must match, each in one line
	not    []string // what neither stdout nor stderr may match
	errs   []string // what stderr must match
	code   int
	within time.Duration // it may be retried that long until all of that holds
	keep   string        // file for stdout
	unlike string        // file with content that stdout must not have
}

// types runs commands one after the other and prints their results. The first unexpected
// one ends the chapter, because the rest depends on it.
func (u *user) types(chapter string, commands ...command) {
	u.t.Helper()
	fmt.Fprintf(u.t.Output(), "\n%s\n", chapter)
	for _, c := range commands {
		began := time.Now()
		stdout, stderr, err := u.try(c)
		for err != nil && time.Since(began) < c.within {
			time.Sleep(200 * time.Millisecond)
			stdout, stderr, err = u.try(c)
		}
		u.count++
		program, args := c.words()
		fmt.Fprintf(u.t.Output(), "   $ %s %s   # %.1f s\n", program, strings.Join(args, " "), time.Since(began).Seconds())
		if err == nil {
			if program == "recast" {
				u.quote(c, stdout+stderr)
			}
			continue
		}
		u.failed++
		u.t.Errorf("%s %s: %v\n%s", program, u.places.Replace(strings.Join(args, " ")), err, shortened(stdout+stderr))
		return
	}
}

// words are the program and its arguments.
func (c command) words() (program string, args []string) {
	if words := strings.Fields(c.line); words[0] != "recast" {
		return "talosctl", words
	}
	return "recast", strings.Fields(c.line)[1:]
}

// quote prints the requested lines.
func (u *user) quote(c command, said string) {
	for line := range strings.Lines(said) {
		for _, expr := range slices.Concat(c.out, c.errs) {
			if regexp.MustCompile(u.pattern(expr)).MatchString(line) {
				fmt.Fprintf(u.t.Output(), "       %s\n", strings.TrimSpace(line))
				break
			}
		}
	}
}

// shortened is the end of a long text.
func shortened(text string) string {
	const lines = 20
	all := strings.SplitAfter(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// try runs a command once; an error says how its result differs.
func (u *user) try(c command) (stdout, stderr string, err error) {
	program, args := c.words()
	stdout, stderr, code := u.run(program, args...)
	var errs []error
	if code != c.code {
		errs = append(errs, fmt.Errorf("exit code %d, want %d", code, c.code))
	}
	match := func(expr, text string) bool { return regexp.MustCompile("(?m)" + u.pattern(expr)).MatchString(text) }
	for _, expr := range c.out {
		if !match(expr, stdout) {
			errs = append(errs, fmt.Errorf("stdout has no %q", expr))
		}
	}
	for _, expr := range c.errs {
		if !match(expr, stderr) {
			errs = append(errs, fmt.Errorf("stderr has no %q", expr))
		}
	}
	for _, expr := range c.not {
		if match(expr, stdout+stderr) {
			errs = append(errs, fmt.Errorf("it says %q", expr))
		}
	}
	if c.unlike != "" {
		if before, err := os.ReadFile(filepath.Join(u.dir, c.unlike)); err != nil || string(before) == stdout {
			errs = append(errs, fmt.Errorf("stdout is what it was (%v)", err))
		}
	}
	if c.keep != "" {
		errs = append(errs, os.WriteFile(filepath.Join(u.dir, c.keep), []byte(stdout), 0o600))
	}
	return stdout, stderr, errors.Join(errs...)
}

// pattern inserts addresses into a regular expression.
func (u *user) pattern(expr string) string {
	return regexp.MustCompile(`\{[a-z]+[0-9]?\}`).ReplaceAllStringFunc(expr, func(place string) string {
		return regexp.QuoteMeta(u.places.Replace(place))
	})
}
