// Package live shows a run in progress: as a tree on a terminal with the current step of
// each node ([View]), or as JSON lines ([Lines]). Whatever happens to the terminal, the
// run continues.
package live

import (
	"cmp"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
)

// Board is the state of a run, from its plan and its events so far.
type Board struct {
	title string // "recast roll"
	began time.Time
	ended time.Time     // zero: still running
	total time.Duration // expected by the plan; 0: unknown
	note  string        // latest note about the whole run
	end   stopState
	lines []string // shown instead of steps

	fold   story.Fold     // what the events say
	nodes  []*node        // in the plan's order, then by appearance
	others []*story.Stage // steps that concern no node, by their first beginning
}

// stopState is how far the user has stopped the run.
type stopState int

const (
	notStoppable stopState = iota
	canStop                // a first Ctrl-C finishes the current nodes
	stopping               // pressed once
	broken                 // pressed twice
)

type node struct {
	name     string
	phase    planning.Phase
	planned  string        // its strategy by the plan
	outage   time.Duration // expected; 0: unknown
	expected time.Duration // expected for the node's whole roll

	turn *story.Turn
	over bool // the run ended before its turn
}

func NewBoard(title string, began time.Time) *Board {
	return &Board{title: title, began: began}
}

// Plan replaces the board's content by what is planned from then on.
func (b *Board) Plan(at time.Time, plan planning.Plan) {
	b.forget()
	b.began = at
	b.total = time.Duration(plan.TotalSeconds) * time.Second
	for _, p := range plan.Work() {
		n := b.node(p.Phase, p.Node)
		n.planned = string(p.Strategy)
		n.outage = time.Duration(p.OutageSeconds) * time.Second
		n.expected = max(n.outage, time.Duration(p.WholeSeconds)*time.Second)
	}
}

// forget clears the board after its content was printed to the scrollback.
func (b *Board) forget() {
	b.note, b.nodes, b.others, b.total, b.fold = "", nil, nil, 0, story.Fold{}
}

// again clears what was heard of the steps, because a command resumes the run: steps that were running
// before will not end.
func (b *Board) again(at time.Time) {
	for _, n := range b.nodes {
		n.planned, n.turn, n.over = n.strategy(), &story.Turn{}, false
	}
	b.began, b.note, b.others, b.fold = at, "", nil, story.Fold{Phases: b.fold.Phases}
}

func (b *Board) See(at time.Time, e step.Event) {
	e.Title, e.Text = oneLine(e.Title), oneLine(e.Text)
	s, turn := b.fold.See(at, e)
	switch {
	case turn != nil:
		b.node(planning.Phase(turn.Phase), turn.Node).turn = turn
	case s == nil && !strings.Contains(e.Path, "/"):
		b.note = e.Text
	case slices.Contains(b.fold.Steps, s):
		b.other(s)
	}
}

// other adds a step that concerns no node. A roll of several plans may build and publish more than once.
func (b *Board) other(s *story.Stage) {
	at := slices.IndexFunc(b.others, func(o *story.Stage) bool { return o.Path == s.Path })
	if at < 0 {
		b.others = append(b.others, s)
		return
	}
	b.others[at] = s
}

// node returns a node of a phase. A node can appear in two phases: an unfinished run is
// finished first.
func (b *Board) node(phase planning.Phase, name string) *node {
	for _, n := range b.nodes {
		if n.name == name && n.phase == phase {
			return n
		}
	}
	n := &node{name: name, phase: phase, turn: &story.Turn{}}
	b.nodes = append(b.nodes, n)
	return n
}

func (n *node) strategy() string { return cmp.Or(n.turn.Strategy(), n.planned) }

func (n *node) begun() bool { return !n.turn.Began.IsZero() && n.turn.Status != notStarted }

// isAway says whether the node is down; its turn goes on.
func (n *node) isAway() bool {
	return !n.turn.AwayFrom.IsZero() && n.turn.AwayTo.IsZero() && n.turn.Ended.IsZero()
}

// text says how its turn ended, or which step has failed.
func (n *node) text() string {
	cause := n.turn.Failure
	if cause == nil || n.turn.Text != "" {
		return n.turn.Text
	}
	if why := text(cause); why != "" {
		return cause.Title + ": " + why
	}
	return cause.Title
}

// current is the innermost running step, or nil.
func (n *node) current() *story.Stage {
	for _, s := range slices.Backward(n.turn.Steps) {
		if s.Ended.IsZero() {
			return s
		}
	}
	return nil
}

// text is the latest note of a step, or how it ended.
func text(s *story.Stage) string {
	switch {
	case s.Ended.IsZero():
		return s.Note
	case s.Error != "":
		return oneLine(strings.TrimPrefix(s.Error, s.Path+": "))
	}
	return s.Text
}

// How steps and turns end, as a story says it.
var (
	done       = step.Done.String()
	skipped    = step.Skipped.String()
	failed     = step.Failed.String()
	notStarted = step.NotStarted.String()
	stopped    = step.Stopped.String()
)

// CanStop shows that a first Ctrl-C finishes the current nodes.
func (b *Board) CanStop() { b.end = max(b.end, canStop) }

// Stopping shows that no further node starts.
func (b *Board) Stopping() { b.end = max(b.end, stopping) }

// Broken shows that the run stops at once.
func (b *Board) Broken() { b.end = broken }

// End sets the run's end: nodes that have not begun will not begin.
func (b *Board) End(at time.Time) {
	b.ended = at
	for _, n := range b.nodes {
		n.over = !n.begun()
	}
}

// oneLine is text in one printable line, without runs of blanks.
func oneLine(text string) string { return strings.Join(strings.Fields(foreign.Line(text)), " ") }

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

func (m *model) Init() tea.Cmd { return tick() }

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

func (g *guard) WriteString(s string) (int, error) { return g.Write([]byte(s)) }

// Read returns EOF: the library must not read keys.
func (g *guard) Read([]byte) (int, error) { return 0, io.EOF }

func (g *guard) Fd() uintptr { return g.file.Fd() }

// Close does nothing: the library must not close the terminal.
func (g *guard) Close() error { return nil }
