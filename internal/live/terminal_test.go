package live

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

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
	t      *testing.T
	tty    *os.File
	width  int
	height int

	mu   sync.Mutex
	rows [][]rune // including those that have scrolled away
	x, y int      // y counts from the first visible row
	rest []byte   // an incomplete sequence
	raw  bytes.Buffer
}

func openScreen(t *testing.T, columns, rows int) *emulated {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	s := &emulated{t: t, tty: tty, width: columns, height: rows, rows: make([][]rune, rows)}
	if err := pty.Setsize(tty, &pty.Winsize{Rows: uint16(rows), Cols: uint16(columns)}); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			s.write(b[:n])
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		tty.Close()
		master.Close()
		reading.Wait()
	})
	return s
}

var sequence = regexp.MustCompile(`^\x1b\[([?>=<]?)([0-9;]*)( ?[@-~])`)

func (s *emulated) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raw.Write(b)
	b = append(s.rest, b...)
	for len(b) > 0 {
		if b[0] == 0x1b {
			m := sequence.FindSubmatch(b)
			if m == nil {
				break // the rest will come
			}
			n, _ := strconv.Atoi(string(m[2]))
			if len(m[1]) == 0 {
				s.control(string(m[3]), n)
			}
			b = b[len(m[0]):]
			continue
		}
		r := []rune(string(b))[0]
		if r == '\ufffd' && len(b) < 4 {
			break
		}
		s.put(r)
		b = b[len(string(r)):]
	}
	s.rest = bytes.Clone(b)
}

func (s *emulated) row(y int) *[]rune { return &s.rows[len(s.rows)-s.height+y] }

func (s *emulated) put(r rune) {
	switch r {
	case '\r':
		s.x = 0
	case '\n':
		if s.y++; s.y == s.height {
			s.y--
			s.rows = append(s.rows, nil)
		}
	case '\b':
		s.x = max(0, s.x-1)
	default:
		row := s.row(s.y)
		for len(*row) <= s.x {
			*row = append(*row, ' ')
		}
		(*row)[s.x] = r
		if s.x++; s.x == s.width {
			s.t.Error("a line is as wide as the screen")
		}
	}
}

func (s *emulated) control(what string, n int) {
	one := max(1, n)
	switch what {
	case "A":
		s.y = max(0, s.y-one)
	case "B":
		s.y = min(s.height-1, s.y+one)
	case "C":
		s.x = min(s.width-1, s.x+one)
	case "D":
		s.x = max(0, s.x-one)
	case "G":
		s.x = one - 1
	case "J":
		s.erase(n)
		for y := s.y + 1; y < s.height; y++ {
			*s.row(y) = nil
		}
	case "K":
		s.erase(n)
	case "X":
		row := s.row(s.y)
		for i := s.x; i < min(s.x+one, len(*row)); i++ {
			(*row)[i] = ' '
		}
	case "L":
		for range one {
			for y := s.height - 1; y > s.y; y-- {
				*s.row(y) = *s.row(y - 1)
			}
			*s.row(s.y) = nil
		}
	case "M":
		for range one {
			for y := s.y; y < s.height-1; y++ {
				*s.row(y) = *s.row(y + 1)
			}
			*s.row(s.height - 1) = nil
		}
	case "P":
		row := s.row(s.y)
		if s.x < len(*row) {
			*row = append((*row)[:s.x:s.x], (*row)[min(len(*row), s.x+one):]...)
		}
	case "m", " q":
	default:
		s.t.Errorf("unknown sequence %q %d", what, n)
	}
}

func (s *emulated) erase(n int) {
	if n != 0 {
		s.t.Errorf("erases %d", n)
	}
	if row := s.row(s.y); s.x < len(*row) {
		*row = (*row)[:s.x]
	}
}

// text is the content of the terminal and its scrollback.
func (s *emulated) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	for _, row := range s.rows {
		out.WriteString(strings.TrimRight(string(row), " ") + "\n")
	}
	return strings.Trim(out.String(), "\n") + "\n"
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
