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

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/step"
)

// View draws a board on a terminal several times a second. Its methods may be called
// concurrently. Only Pause and Close wait for the terminal, for stallTimeout at most.
type View struct {
	out     *os.File
	colour  bool
	timeout time.Duration // for a blocked terminal

	mu      sync.Mutex
	board   *Board         // belongs to the program while it runs
	pending []func(*Board) // events since the last frame
	above   []string       // lines to print above the frame
	run     *program       // nil: nothing is drawn
	paused  bool           // drawing is paused
}

const (
	frameInterval = 100 * time.Millisecond // between frames
	stallTimeout  = 2 * time.Second        // for a blocked terminal
)

// NewView makes a view of a command that begins now. It draws on out from the first event
// on; the caller closes out.
func NewView(out *os.File, title string, colour bool) *View {
	return &View{out: out, colour: colour, timeout: stallTimeout, board: NewBoard(title, time.Now())}
}

// Able says whether a view can be drawn on a terminal: its cursor can be moved, it has a
// size, and this process is in its foreground.
func Able(out *os.File, term string) bool {
	if term == "" || term == "dumb" {
		return false
	}
	size, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ)
	return err == nil && size.Col > 0 && size.Row > 0 && inFront(out)
}

// inFront says whether this process is in the terminal's foreground: output of a
// background job would overwrite what the user types.
func inFront(out *os.File) bool {
	group, err := unix.IoctlGetInt(int(out.Fd()), unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}

// Emit adds an event; the step engine calls it sequentially.
func (v *View) Emit(e step.Event) {
	at := time.Now()
	v.tell(func(b *Board) { b.See(at, e) })
	if e.Status == step.Note && isHook(e.Path) {
		v.print(oneLine(hookOf(e.Path) + e.Text))
	}
	v.Start()
}

// isHook says whether a step runs hooks, whose output comes as notes.
func isHook(path string) bool {
	last := path[strings.LastIndexByte(path, '/')+1:]
	return strings.HasPrefix(last, "run-hooks") || strings.HasPrefix(last, "hooks_") || last == "before-run" || last == "after-run"
}

func hookOf(path string) string {
	if _, node, _ := planning.NodeOfStep(path); node != "" {
		return node + ": "
	}
	return ""
}

func (v *View) tell(what func(*Board)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pending = append(v.pending, what)
}

func (v *View) Plan(plan planning.Plan) {
	at := time.Now()
	v.tell(func(b *Board) { b.Plan(at, plan) })
}

// CanStop shows that a first Ctrl-C finishes the current nodes.
func (v *View) CanStop() { v.tell((*Board).CanStop) }

// Stopping shows that Ctrl-C was pressed.
func (v *View) Stopping() { v.tell((*Board).Stopping) }

// Broken shows that Ctrl-C was pressed twice, or that the run was cancelled in another way.
func (v *View) Broken() { v.tell((*Board).Broken) }

// Print prints text above the frame. It returns false if nothing is drawn: the caller must
// then write the text itself.
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

// Pause removes the frame, prints its final state and releases the terminal, for example
// for a question. Resume undoes it.
func (v *View) Pause() {
	v.mu.Lock()
	run := v.run
	v.paused = true
	v.mu.Unlock()
	drawn := run == nil || run.stop(v.timeout)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run = nil; !drawn {
		return // the terminal is blocked
	}
	v.drain()
	text := v.above
	v.above = nil
	if run != nil {
		text = append(text, v.board.Final(time.Now(), v.look(run.size()))...)
		v.board.forget()
	}
	if len(text) > 0 {
		_, _ = v.out.WriteString(strings.Join(text, "\n") + "\n") // errors mean that the terminal is gone
	}
}

// Start draws before the first event.
func (v *View) Start() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run == nil && !v.paused {
		v.run = v.begin()
	}
}

// Begin resets the board to a run that began at that time.
func (v *View) Begin(title string, began time.Time) {
	v.tell(func(b *Board) { *b = *NewBoard(title, began) })
}

func (v *View) Follow(f *Follower) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drain()
	return f.Read(v.board)
}

func (v *View) Say(text string) {
	v.tell(func(b *Board) { b.note = oneLine(text) })
}

// Show draws lines instead of a tree.
func (v *View) Show(lines []string) { v.tell(func(b *Board) { b.lines = lines }) }

// Resume lets the next event start drawing again.
func (v *View) Resume() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.paused = false
}

// Close prints the final state. Nothing is drawn afterwards.
func (v *View) Close() error {
	v.tell(func(b *Board) { b.End(time.Now()) })
	v.Pause()
	return nil
}

// drain applies the pending events; v.mu must be held.
func (v *View) drain() {
	for _, tell := range v.pending {
		tell(v.board)
	}
	v.pending = nil
}

func (v *View) look(width, height int) Look {
	return Look{Width: max(1, width-1), Height: height, Colour: v.colour}
}

// program is a running instance of the drawing library.
type program struct {
	tea   *tea.Program
	out   *guard
	cont  chan os.Signal
	ended chan struct{}
}

// begin starts drawing; v.mu must be held.
func (v *View) begin() *program {
	p := &program{out: &guard{file: v.out}, cont: make(chan os.Signal, 1), ended: make(chan struct{})}
	profile := colorprofile.ASCII
	if v.colour {
		profile = colorprofile.ANSI
	}
	p.tea = tea.NewProgram(&model{view: v, out: p.out}, tea.WithInput(nil), tea.WithOutput(p.out), tea.WithoutSignalHandler(),
		tea.WithFPS(int(time.Second/frameInterval)), tea.WithColorProfile(profile), tea.WithEnvironment(plainTerminal))
	signal.Notify(p.cont, syscall.SIGCONT)
	go func() { // ends with the program; stop waits for that
		defer close(p.ended)
		_, _ = p.tea.Run() // a terminal that can't be drawn on must not stop the run
	}()
	go v.restart(p)
	return p
}

// plainTerminal keeps the library from querying the terminal's capabilities: nobody reads
// the answers (tea.go, shouldQuerySynchronizedOutput).
var plainTerminal = []string{"TERM=xterm-256color", "SSH_TTY=none"}

// restart starts a new frame below the shell's output after the process was stopped and
// continued.
func (v *View) restart(p *program) {
	defer signal.Stop(p.cont)
	select {
	case <-p.ended:
		return
	case <-p.cont:
	}
	p.out.dead.Store(true)
	if !p.stop(v.timeout) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run == p && !v.paused {
		v.run = v.begin()
	}
}

// stop ends the program and says whether it ended in time.
func (p *program) stop(timeout time.Duration) bool {
	go p.tea.Send(endMsg{}) // may block for ever
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case <-p.ended:
		return true
	case <-late.C:
		p.out.dead.Store(true)
		return false
	}
}

func (p *program) size() (width, height int) {
	size, err := unix.IoctlGetWinsize(int(p.out.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return 80, 24
	}
	return int(size.Col), int(size.Row)
}
