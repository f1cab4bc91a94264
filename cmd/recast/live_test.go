package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// TestLiveView rolls on a terminal: it is resized, Ctrl-C is typed on it, the process
// is stopped and goes on, and the terminal goes away. None of it harms a node.
func TestLiveView(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	term := openLab(t)
	term.patch()

	s := term.onScreen("roll", "--yes")
	s.await("1 out", "take wk1 down", "Ctrl-C finishes what is out")
	s.resize(20, 5)
	s.typed("\x03")
	s.await("stopping: wk1")
	s.resize(100, 30)
	if code := s.end(); code != exitInterrupted {
		t.Errorf("exit code %d, want %d", code, exitInterrupted)
	}
	has(t, s.seen(), "press Ctrl-C again to stop at once", "✓ wk1", "- wk2  recreate  not started", "\r\nrun ", "error: stopped; not started: roll/")
	for _, mode := range []string{"\x1b[>", "\x1b[?u", "\x1b[=", "$p", "\x1b[?1049h"} {
		if strings.Contains(s.seen(), mode) {
			t.Errorf("the terminal was sent %q", mode)
		}
	}
	if said, _ := term.typed(exitDone, "status"); !strings.Contains(said, "nothing is unfinished") {
		t.Errorf("status afterwards:\n%s", said)
	}

	s = term.onScreen("roll", "--yes")
	s.await("1 out")
	s.signal(syscall.SIGSTOP)
	s.signal(syscall.SIGCONT)
	if code := s.end(); code != exitDone {
		t.Errorf("exit code %d, stopped and continued:\n%s", code, s.seen())
	}
	term.typed(exitDone, "drift")

	term.patch()
	s = term.onScreen("roll", "--yes")
	s.await("1 out")
	_ = s.pty.Close()
	if code := s.end(); code == exitDone || code < 0 {
		t.Errorf("exit code %d with its terminal away", code)
	}
	if said, _ := term.typed(exitDone, "status"); !strings.Contains(said, "nobody holds it") || !strings.Contains(said, "nothing is unfinished") {
		t.Errorf("status afterwards:\n%s", said)
	}
	term.typed(exitDone, "lab", "check", "--dir", ".")
}

// screen is a terminal on which recast was typed.
type screen struct {
	t   *testing.T
	cmd *exec.Cmd
	pty *os.File

	mu  sync.Mutex
	got bytes.Buffer
	eof chan struct{}
}

// onScreen types recast on a terminal of its own.
func (term *terminal) onScreen(args ...string) *screen {
	t := term.t.(*testing.T)
	s := &screen{t: t, cmd: term.recast(args...), eof: make(chan struct{})}
	s.cmd.Env = append(s.cmd.Env, "TERM=xterm-kitty", "CI=", "TERM_PROGRAM=ghostty")
	var err error
	if s.pty, err = pty.StartWithSize(s.cmd, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
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

// seen is all that the terminal was sent.
func (s *screen) seen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

func (s *screen) await(texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		for round := 0; !strings.Contains(s.seen(), text); round++ {
			if round == 1200 {
				s.t.Fatalf("never showed %q:\n%s", text, s.seen())
			}
			<-time.After(50 * time.Millisecond)
		}
	}
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
	<-s.eof
	_ = s.pty.Close()
	return code
}
