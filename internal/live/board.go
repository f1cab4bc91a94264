// Package live shows a run in progress: as a tree on a terminal with the current step of each node ([View]), or as JSON
// lines ([Lines]). Whatever happens to the terminal, the run continues.
package live

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
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

func NewBoard(title string, began time.Time) *Board { return &Board{title: title, began: began} }

// Plan replaces the board's content by a plan that begins at that time.
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
func (b *Board) forget() { b.note, b.nodes, b.others, b.total, b.fold = "", nil, nil, 0, story.Fold{} }

// again clears what is known of the steps, because a command resumes the run: steps that were running before will not
// end.
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

// node returns a node of a phase. A node can appear in two phases: an unfinished run is finished first.
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
func (n *node) begun() bool      { return !n.turn.Began.IsZero() && n.turn.Status != notStarted }

// isAway says whether the node is down; its turn goes on.
func (n *node) isAway() bool {
	return !n.turn.AwayFrom.IsZero() && n.turn.AwayTo.IsZero() && n.turn.Ended.IsZero()
}

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

func text(s *story.Stage) string {
	switch {
	case s.Ended.IsZero():
		return s.Note
	case s.Error != "":
		return oneLine(strings.TrimPrefix(s.Error, s.Path+": "))
	}
	return s.Text
}

// The statuses with which steps and turns end, as in a story.
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

func tick() tea.Cmd { return tea.Tick(frameInterval, func(time.Time) tea.Msg { return tickMsg{} }) }

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

// WriteString is Write, for io.WriteString.
func (g *guard) WriteString(s string) (int, error) { return g.Write([]byte(s)) }

// Read returns EOF: the library must not read keys.
func (g *guard) Read([]byte) (int, error) { return 0, io.EOF }

// Fd is the terminal's.
func (g *guard) Fd() uintptr { return g.file.Fd() }

// Close does nothing: the library must not close the terminal.
func (g *guard) Close() error { return nil }

// Lines writes events and other text as JSON: one object a line.
type Lines struct {
	mu sync.Mutex
	w  io.Writer
}

func NewLines(w io.Writer) *Lines { return &Lines{w: w} }

func (l *Lines) Emit(e step.Event) {
	out := story.Line{Time: time.Now(), Msg: "step", Step: e.Path, Status: e.Status.String(), Title: e.Title, Text: e.Text}
	if _, node, _ := planning.NodeOfStep(e.Path); node != "" {
		out.Node = node
	}
	if e.Status == step.Started {
		out.Risk = e.Risk.String()
	}
	if e.Err != nil {
		out.Error, out.Hints = e.Err.Error(), fault.Hints(e.Err)
	}
	l.write(out)
}

// Write writes other text: warnings, errors, hints.
func (l *Lines) Write(p []byte) (int, error) {
	for text := range strings.Lines(string(p)) {
		if text = strings.TrimRight(text, "\r\n"); text != "" {
			l.write(story.Line{Time: time.Now(), Msg: "said", Text: text})
		}
	}
	return len(p), nil
}

func (l *Lines) write(out story.Line) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(foreign.JSON(text.Bytes())) // a closed output must not stop the run
}

// Follower reads the log of a run that another process writes. An overlong log is renamed
// to Older, and a new one begins.
type Follower struct {
	Path, Older string
	Written     time.Time // time of the last write; zero: none

	file    os.FileInfo // the file being read; nil: none yet
	offset  int64
	partial []byte // an unfinished line
}

// Read adds the new lines of the log to the board. A missing log counts as empty.
func (f *Follower) Read(b *Board) error {
	file, err := os.Open(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() // read only
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if f.file == nil || !os.SameFile(f.file, info) || info.Size() < f.offset {
		if err := f.older(b, info); err != nil {
			return err
		}
		f.offset, f.partial = 0, nil
	}
	f.file, f.Written = info, info.ModTime()
	return f.take(b, file, info.Size())
}

// older reads the rest of the older log, which has not been read yet.
func (f *Follower) older(b *Board, now os.FileInfo) error {
	file, err := os.Open(f.Older)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() // read only
	info, err := file.Stat()
	if err != nil || os.SameFile(info, now) { // renamed since it was opened
		return err
	}
	if f.file == nil || !os.SameFile(f.file, info) {
		f.offset, f.partial = 0, nil
	}
	return f.take(b, file, info.Size())
}

// take reads a file from f.offset up to size.
func (f *Follower) take(b *Board, file io.ReaderAt, size int64) error {
	fresh, err := io.ReadAll(io.NewSectionReader(file, f.offset, size-f.offset))
	f.offset += int64(len(fresh))
	text := append(f.partial, fresh...)
	for {
		one, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			f.partial = bytes.Clone(text)
			return err
		}
		b.logged(one)
		text = rest
	}
}

func (b *Board) logged(text []byte) {
	l, ok := story.Parse(text)
	if ok && l.Msg == "command" && l.Status == step.Started.String() {
		b.again(l.Time)
	} else if e, ok := l.Event(); ok {
		b.See(l.Time, e)
	}
}

// The colours of words.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
	dim    = "2"
)

// Look is the size of a frame, and whether it has colours.
type Look struct {
	Width, Height int
	Colour        bool
}

func (l Look) paint(colour, s string) string {
	if !l.Colour || s == "" {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

// fit truncates a line to the width in cells.
func (l Look) fit(line string) string {
	return strings.TrimRight(ansi.Truncate(line, max(1, l.Width), "…"), " ")
}

// apart puts two texts at the ends of a line; without room it drops the right one.
func (l Look) apart(left, right string) string {
	room := l.Width - ansi.StringWidth(left) - ansi.StringWidth(right)
	if room < 2 {
		return left
	}
	return left + strings.Repeat(" ", min(room, readable)) + right
}

// readable bounds the gap between the two: on a wide screen the right text would look unrelated.
const readable = 60

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-ansi.StringWidth(s)))
}

func took(d time.Duration) string { return max(0, d).Round(time.Second).String() }

func about(d time.Duration) string {
	switch {
	case d < 90*time.Second:
		return fmt.Sprintf("about %ds", int(max(0, d).Round(5*time.Second).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("about %dm", int(d.Round(time.Minute).Minutes()))
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("about %dh%dm", int(d.Hours()), int(d.Minutes())%60)
}

const barCells = 20

func bar(done, total int64) string {
	full := int(barCells * max(0, min(done, total)) / max(1, total))
	return "[" + strings.Repeat("█", full) + strings.Repeat("░", barCells-full) + "]"
}

func names(of []string, few int) string {
	last := ""
	switch {
	case len(of) < 2:
		return strings.Join(of, "")
	case len(of) <= few+1:
		of, last = of[:len(of)-1], of[len(of)-1]
	default:
		of, last = of[:few], fmt.Sprintf("%d more", len(of)-few)
	}
	return strings.Join(of, ", ") + " and " + last
}
