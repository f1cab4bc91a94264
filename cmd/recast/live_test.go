package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pump"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
)

// TestLiveView rolls on a terminal that is resized, gets Ctrl-C and disappears, while
// the process is stopped and continued. None of this harms a node.
func TestLiveView(t *testing.T) {
	long(t)
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
	must.Equal(t, "exit code", exitInterrupted, s.end())
	has(t, s.seen(), "Ctrl-C: finish the current nodes", "  ✓ wk1  recreate", "  - wk2  recreate  not started\r\n", "1 of 3 nodes done, 2 not done", "\r\nrun ", "\nerror: ", "stopped; not started: roll/")
	for _, mode := range []string{"\x1b[>", "\x1b[?u", "\x1b[=", "$p", "\x1b[?1049h"} {
		if strings.Contains(s.seen(), mode) {
			t.Errorf("the terminal was sent %q", mode)
		}
	}
	term.finds("nothing is unfinished")

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
	must.Equal(t, "exit code, stopped and continued", exitDone, s.end())
	beside.await(": done\r\n")
	beside.typed("\x03") // it would show the next run
	must.Equal(t, "exit code of who watched", exitDone, beside.end())
	has(t, beside.seen(), "✓ wk2  recreate", "\nrun ", ": done\r\n")
	term.typed(exitDone, "drift")

	term.patch()
	s = term.onScreen("roll", "--yes")
	s.awaitLogged("take wk1 down")
	_ = s.pty.Close()
	if code := s.end(); code == exitDone || code < 0 {
		t.Errorf("exit code %d with its terminal away", code)
	}
	term.finds("nobody holds it", "nothing is unfinished")

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
		logs := must.Get(filepath.Glob(filepath.Join(s.cmd.Dir, ".recast", "runs", "*", story.LogName)))(s.t)
		for _, name := range logs {
			if !slices.Contains(s.before, name) {
				b := must.Get(os.ReadFile(name))(s.t)
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
	must.Do(s.t, pty.Setsize(s.pty, &pty.Winsize{Rows: rows, Cols: columns}))
}

func (s *screen) signal(sig syscall.Signal) {
	s.t.Helper()
	must.Do(s.t, s.cmd.Process.Signal(sig))
}

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

// TestReader rolls with its output in a pipe: nobody reads it, or the reader goes away.
// Neither stops a node half-way, and Ctrl-C still works.
func TestReader(t *testing.T) {
	long(t)
	t.Parallel()
	term := openLab(t)
	term.patch()

	// Nobody reads: a second Ctrl-C stops it where it is.
	_, full := fullPipe(t)
	s := &screen{t: t, cmd: term.recast("roll", "--yes")}
	s.cmd.Stderr = full
	must.Do(t, s.cmd.Start())
	s.awaitLogged("take wk1 down")
	interrupt(t, s.cmd.Process)
	<-time.After(200 * time.Millisecond) // nobody can see that the first one was heard
	interrupt(t, s.cmd.Process)
	must.Equal(t, "exit code of a roll whose story nobody reads", exitInterrupted, s.endSoon())
	term.finds("nobody holds it")

	// The reader goes away: the roll continues.
	s = term.piped("bring wk2 up", "roll", "--yes")
	must.Equal(t, "exit code of a roll whose reader went away", exitDone, s.endSoon())
	term.typed(exitDone, "drift")

	// As with Ctrl-C while tee reads: the node in progress is finished.
	term.patch()
	s = term.piped("take wk1 down", "roll", "--yes", "--progress", "json")
	interrupt(t, s.cmd.Process)
	must.Equal(t, "exit code of a roll that was interrupted with its reader", exitInterrupted, s.endSoon())
	// If the second Ctrl-C above cut a shutdown off, status says for a while that it is unanswered.
	if said, _ := term.typed(exitDone, "status", "-o", "json"); !strings.Contains(said, `"open": []`) || !strings.Contains(said, `"marked": []`) {
		t.Errorf("status afterwards:\n%s", said)
	}
	term.finds("nobody holds it")
	term.typed(exitDone, "lab", "check", "--dir", ".")
}

// piped runs recast with all its output in a pipe, whose reader goes away once it has
// read a text.
func (term *terminal) piped(until string, args ...string) *screen {
	t := term.t.(*testing.T)
	t.Helper()
	read, write, err := os.Pipe()
	must.Do(t, err)
	defer read.Close()
	s := &screen{t: t, cmd: term.recast(args...)}
	s.cmd.Stdout, s.cmd.Stderr = write, write
	err = s.cmd.Start()
	_ = write.Close()
	must.Do(t, err)
	for lines := bufio.NewScanner(read); lines.Scan(); {
		if strings.Contains(lines.Text(), until) {
			return s
		}
	}
	t.Fatalf("never said %q", until)
	return nil
}

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
	must.Do(t, lab.Start())
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
	self := must.Get(os.Executable())(term.t)
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

// long skips a test that takes too long for every build.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make stories")
	}
}

// finds requires words of recast status.
func (term *terminal) finds(words ...string) {
	term.t.Helper()
	said, _ := term.typed(exitDone, "status")
	must.Contain(term.t, "status afterwards", said, words...)
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

func (term *terminal) background(story string, args ...string) *exec.Cmd {
	term.t.Helper()
	f := must.Get(os.Create(filepath.Join(term.dir, story)))(term.t)
	defer f.Close() // the child has its own
	c := term.recast(args...)
	c.Stdout, c.Stderr = f, f
	must.Do(term.t, c.Start())
	return c
}

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
	b := must.Get(os.ReadFile(filepath.Join(term.dir, file)))(term.t)
	return string(b)
}

func (term *terminal) replace(file, old, fresh string) {
	term.t.Helper()
	text := term.read(file)
	if !strings.Contains(text, old) {
		term.t.Fatalf("%s does not hold %q:\n%s", file, old, text)
	}
	must.Do(term.t, os.WriteFile(filepath.Join(term.dir, file), []byte(strings.ReplaceAll(text, old, fresh)), 0o600))
}

// patch publishes a new version of an extension of every node and updates the lock to
// it.
func (term *terminal) patch() {
	term.t.Helper()
	term.typed(exitDone, "lab", "patch", "qemu-guest-agent", "--dir", ".")
	term.typed(exitDone, "lock", "--update")
}

// fullPipe is a pipe that accepts nothing until someone reads.
func fullPipe(t *testing.T) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	must.Do(t, err)
	t.Cleanup(func() { _, _ = read.Close(), write.Close() })
	must.Do(t, write.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	for line := bytes.Repeat([]byte("."), 63); err == nil; {
		_, err = write.Write(append(line, '\n'))
	}
	must.Do(t, write.SetWriteDeadline(time.Time{}))
	return read, write
}

// If nobody reads the output, as with a pager, no step waits, and the end waits only a
// moment. Once there is a reader, it gets what is missing.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	missing := regexp.MustCompile(`warning: (\d+) lines are missing here: nobody read them in time`)
	for _, progress := range []string{progressPlain, progressJSON} {
		read, write := fullPipe(t)
		s := &streams{err: &console{Writer: write}, interrupts: &interrupts{}}
		must.Do(t, s.setProgress("recast roll", progress))
		display := s.displaySteps(t.Context())
		s.err.pump.Patience = 20 * time.Millisecond
		const notes = 2 * pump.Queue
		for i := range notes {
			display.Emit(step.Event{Path: "roll", Status: step.Note, Text: fmt.Sprintf("note %d", i)})
		}
		display.end()
		fmt.Fprintln(s.err, "error: after the end")
		s.err.flush()

		var got []byte
		all := make(chan struct{})
		go func() {
			defer close(all)
			got, _ = io.ReadAll(read)
		}()
		s.err.pump.Patience = time.Minute
		s.err.unbuffer()
		if s.err.pump != nil {
			t.Errorf("%s: is not written, though someone reads", progress)
		}
		_ = write.Close()
		<-all
		m := missing.FindSubmatch(got)
		if m == nil {
			t.Errorf("%s: what is missing is not said", progress)
			continue
		}
		if n, err := strconv.Atoi(string(m[1])); err != nil || n+bytes.Count(got, []byte("note ")) != notes+1 {
			t.Errorf("%s: %d lines are missing, %d are there: %v", progress, n, bytes.Count(got, []byte("note ")), err)
		}
	}
}

// gone is a standard output that nobody reads any more.
type gone struct{}

func (gone) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}
}

func TestAnswered(t *testing.T) {
	t.Parallel()
	_, err := fmt.Fprintln(gone{}, "a report")
	if err == nil || answered(err) != nil {
		t.Errorf("nobody reads: %v", answered(err))
	}
	if err := errors.New("no space left on device"); answered(err) != err {
		t.Errorf("another error: %v", answered(err))
	}
}

// stderr has only the colours of ui's pages.
func TestConsoleHasOurColoursOnly(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("CLICOLOR_FORCE", "1")
	var out bytes.Buffer
	c := &console{Writer: &out}
	fmt.Fprintf(c, "warning: %s\n", "all\x1b[32m is well\x1b[2J\x07")
	page := func(fault.Code) string { return "page" }
	must.Do(t, ui.WriteTrouble(c, ui.Trouble{Err: fault.WithHint(errors.New("all\x1b[32m is well"), "wait"), Runbook: page}))
	const want = "warning: all is well\ufffd\n" +
		"\x1b[31merror:\x1b[0m all is well\n\x1b[33mhint:\x1b[0m wait\n\x1b[2mrunbook:\x1b[0m page\n"
	must.Equal(t, "value", want, out.String())
}
