package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/process"
)

var (
	recastBinary  = flag.String("recast", "../../../bin/recast", "the recast that rolls, and whose lab it is")
	kubectlBinary = flag.String("kubectl", "../../../bin/e2e/kubectl", "what is built of ./kubectl")
)

var speed = flag.String("speed", "20", "of the lab")

// patience is the timeout of a command.
const patience = 5 * time.Minute

// user runs commands in the working directory of a lab whose objects are in a real control
// plane.
type user struct {
	t      *testing.T
	plane  *plane.ControlPlane
	recast string // binary
	dir    string
	env    []string

	count int // commands
	errs  safeBuffer
}

// startLab starts a lab in a separate process, in front of the control plane if there is one.
func startLab(t *testing.T, plane *plane.ControlPlane, flags ...string) *user {
	t.Helper()
	u := &user{t: t, plane: plane, dir: filepath.Join(t.TempDir(), "lab")}
	var err error
	if u.recast, err = filepath.Abs(*recastBinary); err == nil {
		_, err = os.Stat(u.recast)
	}
	if err != nil {
		t.Fatalf("%v: make e2e-k8s builds it", err)
	}
	console := filepath.Join(filepath.Dir(u.dir), "console")
	args := append([]string{"lab", "up", "--dir", u.dir, "--speed", *speed, "--console", console}, flags...)
	if plane != nil {
		args = append(args, "--kubernetes", plane.Dir)
	}
	c := exec.CommandContext(t.Context(), u.recast, args...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	said := new(process.Tail)
	c.Stdout, c.Stderr = said, said
	mustDo(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() {
		<-ended // the test's context has ended by then
		if b, err := os.ReadFile(console); err == nil && t.Failed() {
			log := new(process.Tail)
			_, _ = log.Write(b)
			t.Logf("the end of what the machines said:\n%s", log)
		}
	})
	for range 1200 {
		if _, err := os.Stat(filepath.Join(u.dir, "lab.json")); err == nil {
			u.readEnv()
			return u
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the lab has ended: %v\n%s", err, said)
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatalf("the lab is not ready after two minutes:\n%s", said)
	return nil
}

func (u *user) readEnv() {
	u.t.Helper()
	env := must(os.ReadFile(filepath.Join(u.dir, "env")))(u.t)
	for line := range strings.Lines(string(env)) {
		if setting, is := strings.CutPrefix(strings.TrimSpace(line), "export "); is {
			u.env = append(u.env, strings.ReplaceAll(setting, "'", ""))
		}
	}
}

// telling says whether the running command has printed that on stderr.
func (u *user) telling(text string) bool { return strings.Contains(u.errs.String(), text) }

// safeBuffer can be read while a program writes to it.
type safeBuffer struct {
	mu   sync.Mutex
	said bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said.String()
}

// Reset empties it.
func (b *safeBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said.Reset()
}

// said is the result of a command.
type said struct {
	command     string
	out, errs   string
	code        int
	tookSeconds float64
}

// run runs a recast command to its end.
func (u *user) run(line string) said { return u.call("recast", u.recast, strings.Fields(line)) }

func (u *user) call(name, program string, args []string) said {
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	began := time.Now()
	c := exec.CommandContext(ctx, program, args...)
	c.Dir = u.dir
	c.Env = slices.Concat(os.Environ(), []string{"NO_COLOR=1", "HOME=" + u.dir}, u.env)
	var out bytes.Buffer
	u.errs.Reset()
	c.Stdout, c.Stderr = &out, &u.errs
	err := c.Run()
	s := said{command: name + " " + strings.Join(args, " "), out: out.String(), errs: u.errs.String(), tookSeconds: time.Since(began).Seconds()}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		s.code = exit.ExitCode()
	} else if err != nil {
		s.code, s.errs = -1, err.Error()
	}
	u.count++
	fmt.Fprintf(u.t.Output(), "   $ %s   # exit %d, %.1f s\n", s.command, s.code, s.tookSeconds)
	return s
}

// must runs a command that must end with that code and print all of that.
func (u *user) must(code int, line string, texts ...string) said {
	u.t.Helper()
	s := u.run(line)
	s.has(u.t, code, texts...)
	return s
}

// has checks the exit code and that each text is in a line of stdout or stderr.
func (s said) has(t *testing.T, code int, texts ...string) {
	t.Helper()
	if s.code != code {
		t.Errorf("%s: exit code %d, want %d", s.command, s.code, code)
	}
	for _, text := range texts {
		found := false
		for line := range strings.Lines(s.out + s.errs) {
			if strings.Contains(line, text) {
				fmt.Fprintf(t.Output(), "       %s\n", strings.TrimSpace(line))
				found = true
				break
			}
		}
		if !found {
			t.Errorf("%s: it does not say %q", s.command, text)
		}
	}
	if t.Failed() {
		t.Fatalf("%s\n%s%s", s.command, s.out, s.errs)
	}
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
