package live

import (
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"golang.org/x/sys/unix"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/step"
)

// View draws a board on a terminal, anew several times a second. Its methods may
// be called concurrently and never wait for the terminal, but for Pause and Close,
// which bear with it for a moment.
type View struct {
	out    *os.File
	colour bool
	bears  time.Duration // with a terminal that takes nothing

	mu      sync.Mutex
	board   *Board         // of the program while there is one
	pending []func(*Board) // what has happened since the last frame
	above   []string       // lines that go above the frame
	run     *program       // nil: nothing is drawn
	held    bool           // nothing is to be drawn
}

const (
	every    = 100 * time.Millisecond // a frame
	patience = 2 * time.Second        // for a terminal that takes nothing
)

// NewView draws a command that begins now on out, which the caller keeps. Nothing
// is drawn before the first event.
func NewView(out *os.File, title string, colour bool) *View {
	return &View{out: out, colour: colour, bears: patience, board: NewBoard(title, time.Now())}
}

// Able says whether a view can be drawn on a terminal: it moves its cursor, has a
// size, and is not that of another job.
func Able(out *os.File, term string) bool {
	if term == "" || term == "dumb" {
		return false
	}
	size, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ)
	return err == nil && size.Col > 0 && size.Row > 0 && inFront(out)
}

// inFront says whether this process is in the terminal's foreground: what a job in
// the background draws goes over what somebody types.
func inFront(out *os.File) bool {
	group, err := unix.IoctlGetInt(int(out.Fd()), unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}

// Emit takes one event in; the step engine calls it one event at a time.
func (v *View) Emit(e step.Event) {
	at := time.Now()
	v.tell(func(b *Board) { b.See(at, e) })
	if e.Status == step.Note && isHook(e.Path) {
		v.print(oneLine(hookOf(e.Path) + e.Text))
	}
	v.Start()
}

// isHook says whether a step runs programs of the user's, whose output is told in notes.
func isHook(path string) bool {
	last := path[strings.LastIndexByte(path, '/')+1:]
	return strings.HasPrefix(last, "run-hooks") || strings.HasPrefix(last, "hooks_") || last == "before-run" || last == "after-run"
}

func hookOf(path string) string {
	if _, node, _ := cluster.NodeOfStep(path); node != "" {
		return node + ": "
	}
	return ""
}

func (v *View) tell(what func(*Board)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pending = append(v.pending, what)
}

// Plan says what is about to be done.
func (v *View) Plan(plan cluster.Plan) {
	at := time.Now()
	v.tell(func(b *Board) { b.Plan(at, plan) })
}

// CanStop says that a first Ctrl-C lets the nodes that are out be finished.
func (v *View) CanStop() { v.tell((*Board).CanStop) }

// Stopping says that it was pressed.
func (v *View) Stopping() { v.tell((*Board).Stopping) }

// Broken says that it was pressed again, or that the run is cancelled otherwise.
func (v *View) Broken() { v.tell((*Board).Broken) }

// Print puts text above the frame. It says false where nothing is drawn: whoever
// has the text writes it then.
func (v *View) Print(text string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run == nil {
		return false
	}
	for l := range strings.Lines(text) {
		v.above = append(v.above, foreign.Line(l))
	}
	return true
}

func (v *View) print(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.above = append(v.above, text)
}

// Pause takes the frame away, leaves what it has told in the scrollback and gives
// the terminal back, to ask a question, say. Resume undoes it.
func (v *View) Pause() {
	v.mu.Lock()
	run := v.run
	v.held = true
	v.mu.Unlock()
	drawn := run == nil || run.stop(v.bears)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run = nil; !drawn {
		return // the terminal takes nothing
	}
	v.drain()
	text := v.above
	v.above = nil
	if run != nil {
		text = append(text, v.board.Final(time.Now(), v.look(run.size()))...)
		v.board.forget()
	}
	if len(text) > 0 {
		_, _ = v.out.WriteString(strings.Join(text, "\n") + "\n") // a terminal that is gone takes nothing
	}
}

// Start draws before anything has happened.
func (v *View) Start() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run == nil && !v.held {
		v.run = v.begin()
	}
}

// Begin turns to a run that began then.
func (v *View) Begin(title string, began time.Time) {
	v.tell(func(b *Board) { *b = *NewBoard(title, began) })
}

// Follow lets the board know what a run's log has got since the last time.
func (v *View) Follow(f *Follower) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drain()
	return f.Read(v.board)
}

// Say tells something of the run as a whole.
func (v *View) Say(text string) {
	at := time.Now()
	v.tell(func(b *Board) { b.said = &entry{text: oneLine(text), told: at} })
}

// Show draws lines instead of a tree.
func (v *View) Show(lines []string) { v.tell(func(b *Board) { b.lines = lines }) }

// Resume has the next event draw again.
func (v *View) Resume() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.held = false
}

// Close leaves the final state in the scrollback. Nothing is drawn any more.
func (v *View) Close() error {
	v.tell(func(b *Board) { b.End(time.Now()) })
	v.Pause()
	return nil
}

// drain lets the board know what has happened. The caller holds the lock.
func (v *View) drain() {
	for _, tell := range v.pending {
		tell(v.board)
	}
	v.pending = nil
}

func (v *View) look(width, height int) Look {
	return Look{Width: max(1, width-1), Height: height, Colour: v.colour}
}

// program is the drawing library at work.
type program struct {
	tea   *tea.Program
	out   *guard
	cont  chan os.Signal
	ended chan struct{}
}

// begin begins to draw. The caller holds the lock.
func (v *View) begin() *program {
	p := &program{out: &guard{file: v.out}, cont: make(chan os.Signal, 1), ended: make(chan struct{})}
	profile := colorprofile.ASCII
	if v.colour {
		profile = colorprofile.ANSI
	}
	p.tea = tea.NewProgram(&model{view: v, out: p.out}, tea.WithInput(nil), tea.WithOutput(p.out), tea.WithoutSignalHandler(),
		tea.WithFPS(int(time.Second/every)), tea.WithColorProfile(profile), tea.WithEnvironment(plainTerminal))
	signal.Notify(p.cont, syscall.SIGCONT)
	go func() { // ends with the program; whoever stops it waits for that
		defer close(p.ended)
		_, _ = p.tea.Run() // a terminal that can't be drawn on is no reason to stop
	}()
	go v.again(p)
	return p
}

// plainTerminal keeps the library from asking the terminal what it can do: nobody
// reads the answers (tea.go, shouldQuerySynchronizedOutput).
var plainTerminal = []string{"TERM=xterm-256color", "SSH_TTY=none"}

// again begins anew below whatever the shell has written while the process was
// stopped and continued.
func (v *View) again(p *program) {
	defer signal.Stop(p.cont)
	select {
	case <-p.ended:
		return
	case <-p.cont:
	}
	p.out.dead.Store(true)
	if !p.stop(v.bears) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run == p && !v.held {
		v.run = v.begin()
	}
}

// stop ends the program, and says whether it did in time.
func (p *program) stop(bears time.Duration) bool {
	go p.tea.Send(endMsg{}) // nobody may ever take it
	late := time.NewTimer(bears)
	defer late.Stop()
	select {
	case <-p.ended:
		return true
	case <-late.C:
		p.out.dead.Store(true)
		return false
	}
}

// size is that of the terminal.
func (p *program) size() (width, height int) {
	size, err := unix.IoctlGetWinsize(int(p.out.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return 80, 24
	}
	return int(size.Col), int(size.Row)
}
