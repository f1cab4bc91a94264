package factory

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// teller runs recast in a directory and prints the story.
type teller struct {
	t       *testing.T
	binary  string
	dir     string
	env     []string
	chapter int
}

// tell begins a chapter.
func (s *teller) tell(format string, args ...any) {
	s.chapter++
	fmt.Fprintf(s.t.Output(), "\n%d. %s\n", s.chapter, fmt.Sprintf(format, args...))
}

// notes prints a remark.
func (s *teller) notes(format string, args ...any) {
	fmt.Fprintf(s.t.Output(), "   # %s\n", fmt.Sprintf(format, args...))
}

// typed runs recast to its end, requires an exit code, and returns the whole output.
func (s *teller) typed(want int, args ...string) (said string, took time.Duration) {
	s.t.Helper()
	c := s.recast(args...)
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	began := time.Now()
	got := exitCode(c.Run())
	took = time.Since(began)
	fmt.Fprintf(s.t.Output(), "   $ recast %s\n", strings.Join(args, " "))
	for line := range strings.Lines(b.String()) {
		if !progress.MatchString(line) {
			fmt.Fprintf(s.t.Output(), "   %s\n", strings.TrimRight(line, "\n"))
		}
	}
	fmt.Fprintf(s.t.Output(), "   # exit code %d, %.2f s\n", got, took.Seconds())
	if got != want {
		s.t.Fatalf("recast %s: exit code %d, want %d", strings.Join(args, " "), got, want)
	}
	return b.String(), took
}

// progress matches lines to leave out of the story.
var progress = regexp.MustCompile(`· [0-9]+ MiB of [0-9]+ MiB\n$`)

func (s *teller) recast(args ...string) *exec.Cmd {
	c := exec.CommandContext(s.t.Context(), s.binary, args...)
	c.Dir = s.dir
	c.Env = append(append(os.Environ(), "NO_COLOR=1"), s.env...)
	return c
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}

// says requires texts in an output.
func (s *teller) says(said string, texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		if !strings.Contains(said, text) {
			s.t.Fatalf("it does not say %q:\n%s", text, said)
		}
	}
}

// lab starts a simulated datacentre in a separate process, and changes to its directory:
// it has a Proxmox and a cluster, with credentials.
func (s *teller) lab() {
	s.t.Helper()
	dir := filepath.Join(s.t.TempDir(), "lab")
	s.dir = filepath.Dir(dir)
	c := s.recast("lab", "up", "--dir", dir, "--speed", "100")
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	mustDo(s.t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	s.t.Cleanup(func() { <-ended }) // the test's context has ended by then
	for range 600 {
		if _, err := os.Stat(filepath.Join(dir, "lab.json")); err == nil {
			s.dir = dir
			break
		}
		select {
		case err := <-ended:
			ended <- err
			s.t.Fatalf("the lab has ended: %v\n%s", err, &b)
		case <-time.After(100 * time.Millisecond):
		}
	}
	if s.dir != dir {
		s.t.Fatal("the lab is not ready after a minute")
	}
	for line := range strings.Lines(s.read("env")) {
		if setting, is := strings.CutPrefix(strings.TrimSpace(line), "export "); is {
			s.env = append(s.env, strings.ReplaceAll(setting, "'", ""))
		}
	}
}

func (s *teller) read(name string) string {
	s.t.Helper()
	return s.readFrom(s.dir, name)
}

func (s *teller) readFrom(dir, name string) string {
	s.t.Helper()
	return string(must(os.ReadFile(filepath.Join(dir, name)))(s.t))
}

func (s *teller) write(name, content string) {
	s.t.Helper()
	write(s.t, filepath.Join(s.dir, name), []byte(content))
}

// replace edits the configuration, which must contain old.
func (s *teller) replace(old, fresh string) {
	s.t.Helper()
	text := s.read("recast.yaml")
	if !strings.Contains(text, old) {
		s.t.Fatalf("recast.yaml does not hold %q:\n%s", old, text)
	}
	s.write("recast.yaml", strings.Replace(text, old, fresh, 1))
}
