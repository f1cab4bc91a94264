package live

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/recast-sh/recast/internal/live/emulator"
	"github.com/recast-sh/recast/internal/step"
)

// A real terminal shows one frame, whatever its height was before, the lines above it, and
// finally the lines of the scrollback.
func TestViewOnTerminal(t *testing.T) {
	t.Parallel()
	s := openScreen(t, 60, 14)
	v := NewView(s.tty, "recast roll", true)
	emit := func(path, title string, status step.Status, text string) {
		v.Emit(step.Event{Path: path, Title: title, Status: status, Text: text})
	}
	if v.Print("before the first event") {
		t.Error("something is drawn before the first event")
	}
	emit("roll", "roll 2 of 2 nodes", step.Started, "")
	s.await("recast roll")
	for i := 1; i <= 3; i++ { // the frame grows
		emit("roll/workers", "3 workers", step.Started, "")
		emit(fmt.Sprintf("roll/workers/wk%d", i), fmt.Sprintf("recreate wk%d", i), step.Started, "")
		s.await(fmt.Sprintf("%d in progress", i))
		s.holdsOnce("recast roll")
	}
	v.Print("warning: one\nwarning: two\x1b[2J\u009b2J, which is longer than any screen like this one is wide\n")
	s.await("is wide")
	emit("roll/workers/wk1/run-hooks", "run the hooks", step.Started, "")
	emit("roll/workers/wk1/run-hooks", "", step.Note, "hello \x1b[31mfrom a hook")
	s.await("wk1: hello from a hook")
	s.holdsOnce("recast roll", "warning: one", "warning: two", "3 in progress")
	for i := 1; i <= 3; i++ { // and shrinks, on a smaller screen
		emit(fmt.Sprintf("roll/workers/wk%d", i), fmt.Sprintf("recreate wk%d", i), step.Done, "runs it")
		s.await(fmt.Sprintf("%d of 3", i))
	}
	v.Stopping()
	s.await("Ctrl-C again")
	s.holdsOnce("recast roll", "Ctrl-C again")
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	s.awaitWithout("recast roll", "Ctrl-C")
	s.await("so far")
	s.holdsOnce("✓ wk1", "✓ wk2", "✓ wk3", "so far")
	if v.Print("afterwards") {
		t.Error("something is drawn after the end")
	}
}

// emulated is a terminal and its content, as far as a view needs it.
type emulated struct {
	t   *testing.T
	tty *os.File

	mu     sync.Mutex
	screen *emulator.Screen
	raw    bytes.Buffer
}

func openScreen(t *testing.T, columns, rows int) *emulated {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	s := &emulated{t: t, tty: tty, screen: emulator.New(columns, rows)}
	if err := pty.Setsize(tty, &pty.Winsize{Rows: uint16(rows), Cols: uint16(columns)}); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			s.mu.Lock()
			s.raw.Write(b[:n])
			_, _ = s.screen.Write(b[:n]) // it never fails
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		tty.Close()
		master.Close()
		reading.Wait()
		if len(s.screen.Problems) > 0 || s.screen.Widest >= columns {
			t.Errorf("a line of %d characters on a screen of %d; %q", s.screen.Widest, columns, s.screen.Problems)
		}
	})
	return s
}

// text is the content of the terminal and its scrollback.
func (s *emulated) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.Text()
}

func (s *emulated) await(text string) {
	s.t.Helper()
	for range 600 {
		if strings.Contains(s.text(), text) {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	s.t.Fatalf("never showed %q:\n%s\n%q", text, s.text(), s.raw.String())
}

func (s *emulated) awaitWithout(texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		for round := 0; strings.Contains(s.text(), text); round++ {
			if round == 600 {
				s.t.Fatalf("%q has stayed:\n%s", text, s.text())
			}
			<-time.After(10 * time.Millisecond)
		}
	}
}

func (s *emulated) holdsOnce(texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		if n := strings.Count(s.text(), text); n != 1 {
			s.t.Fatalf("holds %q %d times:\n%s\n%q", text, n, s.text(), s.raw.String())
		}
	}
}
