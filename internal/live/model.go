package live

import (
	"io"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

// model is a View for the drawing library.
type model struct {
	view          *View
	out           *guard
	width, height int
	frame         string
}

type (
	tickMsg struct{} // draw another frame
	endMsg  struct{} // the last frame was drawn
)

func tick() tea.Cmd {
	return tea.Tick(frameInterval, func(time.Time) tea.Msg { return tickMsg{} })
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return tick() }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		return m, tea.Sequence(m.draw()...)
	case tickMsg:
		above := m.draw()
		return m, tea.Sequence(append(above, tick())...)
	case endMsg:
		m.frame = ""
		return m, tea.Quit
	}
	return m, nil
}

// View implements tea.Model. The cursor stays visible, on its own line below the frame, so
// that a process that is stopped or killed leaves a usable terminal.
func (m *model) View() tea.View {
	content, below := " ", 0
	if m.frame != "" {
		content, below = m.frame+"\n ", strings.Count(m.frame, "\n")+1
	}
	v := tea.NewView(content)
	v.DisableBracketedPasteMode = true
	v.Cursor = tea.NewCursor(0, below)
	return v
}

// draw updates the frame, and returns commands that print the lines above it.
func (m *model) draw() (above []tea.Cmd) {
	// A bug in the display must not end the run.
	defer func() {
		if recover() != nil {
			m.frame, above = "", nil
		}
	}()
	v := m.view
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drain()
	if m.height == 0 || !inFront(m.out.file) {
		return nil
	}
	// Two lines less: one for the cursor, one for the text that scrolls by above.
	look := v.look(m.width, m.height-2)
	m.frame = strings.Join(v.board.Frame(time.Now(), look), "\n")
	if !m.out.drawn.Load() {
		return nil // lines above need a frame on the screen
	}
	for _, text := range v.above {
		for part := range strings.SplitSeq(ansi.Hardwrap(text, look.Width, true), "\n") {
			above = append(above, tea.Println(part))
		}
	}
	v.above = nil
	return above
}

// guard is the terminal for the drawing library. It filters what would change the
// terminal's handling of keys: recast does not read keys, and Ctrl-C must remain a signal.
type guard struct {
	file *os.File // unexported, so that the library sees only the methods below

	drawn atomic.Bool // something was written
	dead  atomic.Bool // writes are dropped
}

// keyModes are queries that the terminal answers as if typed, and changes of its key
// encoding: with Kitty's keyboard protocol Ctrl-C is no longer a signal. bubbletea sends
// them even if it does not read keys (cursed_renderer.go, flush).
var keyModes = regexp.MustCompile("\x1b\\[(?:[<=>?][0-9;]*u|>[0-9;]*m|\\?[0-9;]*\\$p|\\?[0-9;]*n|6n|[0-9]*c|>[0-9]*q)")

// Write starts each frame at the beginning of the cursor's line, because typed keys are
// echoed there. Errors are dropped.
func (g *guard) Write(p []byte) (int, error) {
	if g.dead.Load() {
		return len(p), nil
	}
	kept := keyModes.ReplaceAll(p, nil)
	if len(kept) == 0 {
		return len(p), nil
	}
	g.drawn.Store(true)
	if _, err := g.file.Write(append([]byte("\r"), kept...)); err != nil {
		g.dead.Store(true)
	}
	return len(p), nil
}

// WriteString is Write, for io.WriteString.
func (g *guard) WriteString(s string) (int, error) { return g.Write([]byte(s)) }

// Read returns EOF: the library must not read keys.
func (g *guard) Read([]byte) (int, error) { return 0, io.EOF }

// Fd is that of the terminal.
func (g *guard) Fd() uintptr { return g.file.Fd() }

// Close does nothing: the library must not close the terminal.
func (g *guard) Close() error { return nil }
