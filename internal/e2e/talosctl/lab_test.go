package talosctl

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	recastBinary   = flag.String("recast", "../../../bin/recast", "the recast whose lab it is")
	talosctlBinary = flag.String("talosctl", "../../../bin/e2e/talosctl", "what is built of ./talosctl")
	ageBinary      = flag.String("age", "../../../bin/e2e/age", "age; beside it is age-keygen")
)

// user runs commands in the working directory of a lab.
type user struct {
	t        *testing.T
	dir      string
	programs map[string]string // built by make
	env      []string
	places   *strings.Replacer // "{cp1}" and the like
	count    int
	failed   int
}

// newUser is a user in a directory that is not there yet.
func newUser(t *testing.T) *user {
	t.Helper()
	u := &user{t: t, dir: filepath.Join(t.TempDir(), "lab"), programs: map[string]string{}, places: strings.NewReplacer()}
	for name, path := range map[string]string{"recast": *recastBinary, "talosctl": *talosctlBinary, "age": *ageBinary, "age-keygen": *ageBinary + "-keygen"} {
		abs, err := filepath.Abs(path)
		if err == nil {
			_, err = os.Stat(abs)
		}
		if err != nil {
			t.Fatalf("%v: make e2e-talosctl builds it", err)
		}
		u.programs[name] = abs
	}
	return u
}

// startLab starts a lab of three control planes and two workers with that version of Talos
// in a separate process.
func startLab(t *testing.T, version string) *user {
	t.Helper()
	u := newUser(t)
	c := exec.CommandContext(t.Context(), u.programs["recast"], "lab", "up", "--dir", u.dir, "--speed", "20", "--control-planes", "3", "--talos-version", version)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	mustDo(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() { <-ended }) // the test's context has ended by then
	for range 600 {
		if _, err := os.Stat(filepath.Join(u.dir, "lab.json")); err == nil {
			u.findPlaces(version)
			return u
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the lab has ended: %v\n%s", err, &said)
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatal("the lab is not ready after a minute")
	return nil
}

// findPlaces derives the machines' addresses from that of Proxmox, and reads the lab's
// environment variables.
func (u *user) findPlaces(version string) {
	u.t.Helper()
	config := must(os.ReadFile(filepath.Join(u.dir, "recast.yaml")))(u.t)
	found := regexp.MustCompile(`https://([0-9]+\.[0-9]+\.[0-9]+)\.1:8006`).FindSubmatch(config)
	if found == nil {
		u.t.Fatalf("recast.yaml names no Proxmox:\n%s", config)
	}
	env := must(os.ReadFile(filepath.Join(u.dir, "env")))(u.t)
	for line := range strings.Lines(string(env)) {
		if setting, is := strings.CutPrefix(strings.TrimSpace(line), "export "); is {
			u.env = append(u.env, strings.ReplaceAll(setting, "'", ""))
		}
	}
	pairs := []string{"{dir}", u.dir, "{talos}", version}
	for name, last := range map[string]int{"cp1": 11, "cp2": 12, "cp3": 13, "wk1": 31, "wk2": 32} {
		pairs = append(pairs, "{"+name+"}", fmt.Sprintf("%s.%d", found[1], last))
	}
	u.places = strings.NewReplacer(pairs...)
}

// patience is the timeout of a command.
const patience = 3 * time.Minute

// run runs a program to its end.
func (u *user) run(name string, args ...string) (stdout, stderr string, code int) {
	for i, arg := range args {
		args[i] = u.places.Replace(arg)
	}
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, u.programs[name], args...)
	c.Dir = u.dir
	c.Env = slices.Concat(os.Environ(), []string{"NO_COLOR=1", "HOME=" + u.dir}, u.env)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return out.String(), errs.String(), exit.ExitCode()
	}
	if err != nil {
		return "", err.Error(), -1
	}
	return out.String(), errs.String(), 0
}

// must is the value of a call, whose error ends the test: must(os.ReadFile(name))(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		mustDo(t, err)
		return v
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
