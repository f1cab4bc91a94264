package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/recast-sh/recast/internal/story"
)

// TestLiveView rolls on a terminal that is resized, gets Ctrl-C and disappears, while
// the process is stopped and continued. None of this harms a node.
func TestLiveView(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	term := openLab(t)
	term.patch()

	s := term.onScreen("roll", "--yes")
	s.awaitLogged("take wk1 down")
	s.typed("\x03")
	s.await("press Ctrl-C again to stop at once")
	s.resize(20, 5)
	s.awaitLogged("bring wk1 up")
	s.resize(100, 30)
	if code := s.end(); code != exitInterrupted {
		t.Errorf("exit code %d, want %d", code, exitInterrupted)
	}
	has(t, s.seen(), "Ctrl-C: finish the current nodes", "  ✓ wk1  recreate", "  - wk2  recreate  not started\r\n", "1 of 3 nodes done, 2 not done", "\r\nrun ", "\nerror: ", "stopped; not started: roll/")
	for _, mode := range []string{"\x1b[>", "\x1b[?u", "\x1b[=", "$p", "\x1b[?1049h"} {
		if strings.Contains(s.seen(), mode) {
			t.Errorf("the terminal was sent %q", mode)
		}
	}
	if said, _ := term.typed(exitDone, "status"); !strings.Contains(said, "nothing is unfinished") {
		t.Errorf("status afterwards:\n%s", said)
	}

	beside := term.onScreen("status", "--watch")
	beside.await("nobody holds it")
	s = term.onScreen("roll", "--yes")
	s.awaitLogged("take wk2 down")
	leaves := term.onScreen("status", "--watch")
	leaves.await("wk2  recreate")
	leaves.typed("\x03")
	if code := leaves.end(); code != exitDone || strings.Contains(leaves.seen(), "not done") {
		t.Errorf("exit code %d of who watched and left:\n%s", code, leaves.seen())
	}
	has(t, leaves.seen(), "\nrun ", " continues\r\n")
	s.signal(syscall.SIGSTOP)
	s.signal(syscall.SIGCONT)
	if code := s.end(); code != exitDone {
		t.Errorf("exit code %d, stopped and continued:\n%s", code, s.seen())
	}
	beside.await(": done\r\n")
	beside.typed("\x03") // it would show the next run
	if code := beside.end(); code != exitDone {
		t.Errorf("exit code %d of who watched:\n%s", code, beside.seen())
	}
	has(t, beside.seen(), "✓ wk2  recreate", "\nrun ", ": done\r\n")
	term.typed(exitDone, "drift")

	term.patch()
	s = term.onScreen("roll", "--yes")
	s.awaitLogged("take wk1 down")
	_ = s.pty.Close()
	if code := s.end(); code == exitDone || code < 0 {
		t.Errorf("exit code %d with its terminal away", code)
	}
	if said, _ := term.typed(exitDone, "status"); !strings.Contains(said, "nobody holds it") || !strings.Contains(said, "nothing is unfinished") {
		t.Errorf("status afterwards:\n%s", said)
	}

	term.patch() // or nothing would be left where the terminal went away late
	_, story := term.typed(exitDone, "roll", "--yes", "--progress", "json")
	for text := range strings.Lines(story) {
		if !json.Valid([]byte(text)) {
			t.Errorf("no JSON: %s", text)
		}
	}
	has(t, story, `"msg":"step","step":"roll/workers/wk2","status":"started","node":"wk2"`)
	term.typed(exitDone, "lab", "check", "--dir", ".")
}

// screen is a terminal in which recast runs.
type screen struct {
	t   *testing.T
	cmd *exec.Cmd
	pty *os.File

	before []string // logs of runs before it

	mu  sync.Mutex
	got bytes.Buffer
	eof chan struct{}
}

// onScreen runs recast in its own terminal.
func (term *terminal) onScreen(args ...string) *screen {
	c := term.recast(args...)
	c.Env = append(c.Env, "TERM=xterm-kitty", "CI=", "TERM_PROGRAM=ghostty")
	return startScreen(term.t.(*testing.T), c, 100, 30)
}

// startScreen runs a command in its own terminal.
func startScreen(t *testing.T, c *exec.Cmd, columns, rows uint16) *screen {
	t.Helper()
	s := &screen{t: t, cmd: c, eof: make(chan struct{})}
	var err error
	if s.before, err = filepath.Glob(filepath.Join(c.Dir, ".recast", "runs", "*", story.LogName)); err != nil {
		t.Fatal(err)
	}
	c.Stdin, c.Stdout, c.Stderr = nil, nil, nil // the terminal
	if s.pty, err = pty.StartWithSize(c, &pty.Winsize{Rows: rows, Cols: columns}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.eof)
		b := make([]byte, 4096)
		for {
			n, err := s.pty.Read(b)
			s.mu.Lock()
			s.got.Write(b[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

// seen is everything that was sent to the terminal.
func (s *screen) seen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

func (s *screen) await(text string) {
	s.t.Helper()
	s.until(text, s.seen)
}

// awaitLogged waits until the run's log has a text: of a frame only the changes are
// drawn.
func (s *screen) awaitLogged(text string) {
	s.t.Helper()
	s.until(text, func() string {
		logs, err := filepath.Glob(filepath.Join(s.cmd.Dir, ".recast", "runs", "*", story.LogName))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, name := range logs {
			if !slices.Contains(s.before, name) {
				b, err := os.ReadFile(name)
				if err != nil {
					s.t.Fatal(err)
				}
				return string(b)
			}
		}
		return ""
	})
}

func (s *screen) until(text string, seen func() string) {
	s.t.Helper()
	for range 1200 {
		if strings.Contains(seen(), text) {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	s.t.Fatalf("never showed %q:\n%s", text, s.seen())
}

func (s *screen) typed(keys string) {
	s.t.Helper()
	if _, err := s.pty.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) resize(columns, rows uint16) {
	s.t.Helper()
	if err := pty.Setsize(s.pty, &pty.Winsize{Rows: rows, Cols: columns}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// end waits for the process, and returns its exit code.
func (s *screen) end() int {
	code := exitCode(s.cmd.Wait())
	if s.pty != nil {
		<-s.eof
		_ = s.pty.Close()
	}
	return code
}

// endSoon is end for a process that may hang: -1 then.
func (s *screen) endSoon() int {
	late := time.AfterFunc(2*time.Minute, func() { _ = s.cmd.Process.Kill() })
	defer late.Stop()
	return s.end()
}
