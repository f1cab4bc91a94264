package report

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// lab is a simulated datacentre, and recast in it.
type lab struct {
	t      *testing.T
	recast string
	dir    string
	env    []string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, recast: filepath.Join(t.TempDir(), "recast"), dir: t.TempDir()}
	build := exec.Command("go", "build", "-o", l.recast, "./cmd/recast")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build recast: %v\n%s", err, out)
	}
	l.env = append(os.Environ(), "HOME="+l.dir)
	l.start("ready", "lab", "up", "--dir", ".", "--speed", "30", "--workers", "3")
	env := must(os.ReadFile(filepath.Join(l.dir, "env")))(t)
	for line := range strings.Lines(string(env)) {
		if name, value, found := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "="); found {
			l.env = append(l.env, name+"="+strings.Trim(value, "'"))
		}
	}
	l.run("lab", "patch", "iscsi-tools", "--dir", ".")
	l.run("lock", "--update")
	return l
}

func (l *lab) command(args ...string) *exec.Cmd {
	c := exec.CommandContext(l.t.Context(), l.recast, args...)
	c.Dir, c.Env = l.dir, l.env
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	return c
}

func (l *lab) run(args ...string) {
	l.t.Helper()
	if out, err := l.command(args...).CombinedOutput(); err != nil {
		l.t.Fatalf("recast %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// start starts a command, and returns the first line that it prints, which must begin so.
// The command is interrupted, and must then succeed, at the end of the test.
func (l *lab) start(want string, args ...string) string {
	l.t.Helper()
	c := l.command(args...)
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	mustDo(l.t, err)
	l.t.Cleanup(func() {
		if err := c.Wait(); !errors.Is(err, context.Canceled) { // what it returns if the interrupted command succeeds
			l.t.Errorf("recast %s: %v\n%s", strings.Join(args, " "), err, &said)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, want) {
		l.t.Fatalf("recast %s printed %q: %v", strings.Join(args, " "), line, err)
	}
	return strings.TrimSpace(line)
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
