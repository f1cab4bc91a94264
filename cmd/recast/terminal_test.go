package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// terminal is a session in the working directory of a lab that runs as a separate
// process.
type terminal struct {
	t   testing.TB
	dir string
	env []string
}

// openLab starts a lab that is faster than any real cluster.
func openLab(t testing.TB, flags ...string) *terminal {
	t.Helper()
	term := &terminal{t: t, dir: filepath.Join(t.TempDir(), "lab")}
	lab := term.recast(append([]string{"lab", "up", "--dir", term.dir, "--speed", "100"}, flags...)...)
	lab.Dir = filepath.Dir(term.dir)
	var said bytes.Buffer
	lab.Stderr, lab.Cancel = &said, func() error { return lab.Process.Signal(os.Interrupt) }
	if err := lab.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("the lab, interrupted at the end of the test: %v\n%s", err, &said)
		}
	})
	hangs := time.AfterFunc(5*time.Minute, func() { _ = lab.Process.Signal(syscall.SIGQUIT) }) // then it says where
	awaitFile(t, filepath.Join(term.dir, "lab.json"))
	hangs.Stop()
	for line := range strings.Lines(term.read("env")) {
		setting, exported := strings.CutPrefix(strings.TrimSpace(line), "export ")
		if !exported {
			continue // PATH
		}
		name, value, _ := strings.Cut(setting, "=")
		term.env = append(term.env, name+"="+strings.Trim(value, "'"))
	}
	term.replace("recast.yaml", "settle: 2s", "settle: 200ms")
	term.replace("recast.yaml", "poll: 200ms", "poll: 50ms")
	return term
}

// recast is this test binary, run as recast in the directory of the lab.
func (term *terminal) recast(args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		term.t.Fatal(err)
	}
	c := exec.CommandContext(term.t.Context(), self, args...)
	c.Dir = term.dir
	c.Env = append(append(os.Environ(), "RECAST_TEST_MAIN=1", "NO_COLOR=1"), term.env...)
	return c
}

// typed runs recast to its end and requires an exit code.
func (term *terminal) typed(want int, args ...string) (stdout, stderr string) {
	term.t.Helper()
	c := term.recast(args...)
	var out, story bytes.Buffer
	c.Stdout, c.Stderr = &out, &story
	if code := exitCode(c.Run()); code != want {
		term.t.Fatalf("recast %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, want, &story, &out)
	}
	return out.String(), story.String()
}

// exitCode is -1 for a process that was ended by a signal.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -2
}

// background starts recast with its output in a file.
func (term *terminal) background(story string, args ...string) *exec.Cmd {
	term.t.Helper()
	f, err := os.Create(filepath.Join(term.dir, story))
	if err != nil {
		term.t.Fatal(err)
	}
	defer f.Close() // the child has its own
	c := term.recast(args...)
	c.Stdout, c.Stderr = f, f
	if err := c.Start(); err != nil {
		term.t.Fatal(err)
	}
	return c
}

// await waits until a file of the directory contains a text.
func (term *terminal) await(file, text string) {
	term.t.Helper()
	for range 1200 {
		if strings.Contains(term.read(file), text) {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	term.t.Fatalf("%s never held %q:\n%s", file, text, term.read(file))
}

func (term *terminal) read(file string) string {
	term.t.Helper()
	b, err := os.ReadFile(filepath.Join(term.dir, file))
	if err != nil {
		term.t.Fatal(err)
	}
	return string(b)
}

func (term *terminal) replace(file, old, fresh string) {
	term.t.Helper()
	text := term.read(file)
	if !strings.Contains(text, old) {
		term.t.Fatalf("%s does not hold %q:\n%s", file, old, text)
	}
	if err := os.WriteFile(filepath.Join(term.dir, file), []byte(strings.ReplaceAll(text, old, fresh)), 0o600); err != nil {
		term.t.Fatal(err)
	}
}

// patch publishes a new version of an extension of every node and updates the lock to
// it.
func (term *terminal) patch() {
	term.t.Helper()
	term.typed(exitDone, "lab", "patch", "qemu-guest-agent", "--dir", ".")
	term.typed(exitDone, "lock", "--update")
}
