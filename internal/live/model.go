package live

import (
	"strings"
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
