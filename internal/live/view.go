package live

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
	"golang.org/x/sys/unix"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/words"
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

// NewView makes a view of a command that begins now. It draws on out from the first event on; the caller closes out.
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
		text := e.Text
		if _, node, _ := planning.NodeOfStep(e.Path); node != "" {
			text = node + ": " + text
		}
		v.print(oneLine(text))
	}
	v.Start()
}

// isHook says whether a step runs hooks, whose output comes as notes.
func isHook(path string) bool {
	last := path[strings.LastIndexByte(path, '/')+1:]
	return strings.HasPrefix(last, "run-hooks") || strings.HasPrefix(last, "hooks_") || last == "before-run" || last == "after-run"
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

// Print prints text above the frame. It returns false if nothing is drawn: the caller must then write the text itself.
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

func (v *View) Say(text string) { v.tell(func(b *Board) { b.note = oneLine(text) }) }

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

// restart starts a new frame below the shell's output after the process was stopped and continued.
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

// detail is the level of detail of a frame: the first level that fits the screen is used.
type detail int

const (
	whole  detail = iota // a line for each node, two for a node in progress
	folded               // in each phase, one line for done and one for waiting nodes
	few                  // the same for all phases together; of other steps only running ones
	lean                 // a line for each node in progress or failed
	levels
)

// Frame draws the board, in no more lines than the screen has.
func (b *Board) Frame(now time.Time, l Look) []string {
	head, foot := b.head(now, l), append(b.totals(now, l), b.dialogue(l)...) // always visible: progress, and what Ctrl-C does
	var body []string
	for level := range levels {
		body = b.body(now, l, level)
		if len(head)+len(body)+len(foot) <= l.Height {
			return l.all(head, body, foot)
		}
	}
	if len(b.lines) > 0 {
		body, foot = append(head, body...), nil
	}
	if len(foot) >= l.Height {
		return l.all(foot[:max(0, l.Height)])
	}
	return l.all(body[:max(0, min(len(body), l.Height-len(foot)))], foot)
}

// Final draws the whole board, for the scrollback.
func (b *Board) Final(now time.Time, l Look) []string {
	return l.all(b.body(now, l, whole), b.totals(now, l))
}

func (l Look) all(parts ...[]string) []string { return cluster.Each(slices.Concat(parts...), l.fit) }

func (b *Board) head(now time.Time, l Look) []string {
	head := []string{l.apart(l.paint(bold, b.title), took(b.until(now).Sub(b.began)))}
	if b.note != "" {
		head = append(head, l.paint(dim, "  · "+b.note))
	}
	return head
}

func (b *Board) until(now time.Time) time.Time {
	if !b.ended.IsZero() {
		return b.ended
	}
	return now
}

func (b *Board) body(now time.Time, l Look, level detail) []string {
	lines := slices.Concat(cluster.Each(b.lines, func(text string) []string {
		return strings.Split(ansi.Wrap(text, max(1, l.Width), ""), "\n")
	})...)
	for _, s := range b.others {
		lines = append(lines, drawOther(now, l, level, s)...)
	}
	wide := 0
	for _, n := range b.nodes {
		wide = max(wide, len(n.name))
	}
	if level >= few {
		return append(lines, b.group(now, l, level, wide, b.nodes)...)
	}
	for from := 0; from < len(b.nodes); {
		to := from
		for to < len(b.nodes) && b.nodes[to].phase == b.nodes[from].phase {
			to++
		}
		if title := b.fold.Phases[b.nodes[from].phase]; title != "" {
			lines = append(lines, l.paint(bold, title))
		} else {
			lines = append(lines, l.paint(dim, strings.ReplaceAll(string(b.nodes[from].phase), "-", " ")))
		}
		lines = append(lines, b.group(now, l, level, wide, b.nodes[from:to])...)
		from = to
	}
	return lines
}

// drawOther draws a step that concerns no node. Below the second level only running and failed steps are drawn.
func drawOther(now time.Time, l Look, level detail, s *story.Stage) []string {
	depth := strings.Count(strings.TrimPrefix(s.Path, "roll/"), "/")
	indent := strings.Repeat("  ", depth+1)
	switch runs := s.Ended.IsZero(); {
	case runs && s.Branch:
		if level >= few {
			return nil
		}
		return []string{indent + l.paint(yellow, "▸") + " " + s.Title + "  " + l.paint(dim, took(now.Sub(s.Began)))}
	case runs:
		lines := []string{indent + l.paint(yellow, "▸") + " " + s.Title + "  " + l.paint(dim, took(now.Sub(s.Began)))}
		if level < lean {
			lines = append(lines, noteLines(now, l, indent+"    ", s)...)
		}
		return lines
	case s.Status == failed && !s.Branch:
		return []string{indent + l.paint(red, "✗") + " " + s.Title + ": " + text(s)}
	case level > whole || depth > 1:
		return nil
	case s.Status == done || s.Status == skipped:
		line := s.Title
		if s.Text != "" {
			line += ": " + s.Text
		}
		if d := s.Ended.Sub(s.Began).Round(time.Second); d > 0 {
			line += "  " + l.paint(dim, d.String())
		}
		return []string{indent + l.paint(green, "✓") + " " + line}
	case s.Status == failed:
		return []string{indent + l.paint(red, "✗") + " " + s.Title}
	}
	return []string{indent + l.paint(dim, "- "+s.Title+": not done")}
}

// noteLines is a running step's latest note, or the bar of a transfer.
func noteLines(now time.Time, l Look, indent string, s *story.Stage) []string {
	if s.Note == "" {
		return nil
	}
	if done, total, rest, ok := images.ReadProgress(s.Note); ok {
		return []string{fmt.Sprintf("%s%s %3d%%  %s", indent, l.paint(yellow, bar(done, total)), 100*done/max(1, total), l.paint(dim, rest))}
	}
	text := s.Note
	if age := now.Sub(s.NoteAt).Round(time.Second); age >= stale {
		text += fmt.Sprintf(" (%s ago)", age)
	}
	return []string{indent + l.paint(dim, text)}
}

// stale is the age from which a note's age is shown.
const stale = 5 * time.Second

func (b *Board) group(now time.Time, l Look, level detail, wide int, nodes []*node) []string {
	var lines, done, waiting []string
	for _, n := range nodes {
		switch n.state() {
		case isDone:
			if level > whole {
				done = append(done, n.name)
				continue
			}
		case isWaiting:
			if level > whole {
				waiting = append(waiting, n.name)
				continue
			}
		}
		lines = append(lines, b.draw(now, l, level, wide, n)...)
	}
	if level >= lean {
		return lines
	}
	if len(done) > 0 {
		lines = append([]string{fmt.Sprintf("  %s %d done: %s", l.paint(green, "✓"), len(done), strings.Join(done, ", "))}, lines...)
	}
	if len(waiting) > 0 {
		lines = append(lines, l.paint(dim, fmt.Sprintf("  · %d to go: %s", len(waiting), strings.Join(waiting, ", "))))
	}
	return lines
}

type nodeState int

const (
	isWaiting nodeState = iota
	isRunning
	isDone
	isFailed
	isStopped // stopped, or will never begin
)

func (n *node) state() nodeState {
	switch t := n.turn; {
	case n.over, t.Status == notStarted, t.Status == stopped, t.Interrupted:
		return isStopped
	case !n.begun():
		return isWaiting
	case t.Ended.IsZero():
		return isRunning
	case t.Status == failed:
		return isFailed
	}
	return isDone
}

func (b *Board) draw(now time.Time, l Look, level detail, wide int, n *node) []string {
	marks := map[nodeState]string{
		isWaiting: l.paint(dim, "·"), isRunning: l.paint(yellow, "▸"), isDone: l.paint(green, "✓"),
		isFailed: l.paint(red, "✗"), isStopped: l.paint(dim, "-"),
	}
	state := n.state()
	lead := fmt.Sprintf("  %s %s  %s", marks[state], l.paint(bold, pad(n.name, wide)), pad(n.strategy(), len(cluster.Recreate)))
	at := n.current()
	switch {
	case state == isWaiting && at != nil: // the step is its preparation
		return []string{lead + "  " + l.paint(dim, at.Title+"  "+took(now.Sub(at.Began)))}
	case state == isWaiting:
		if n.expected == 0 {
			return []string{lead}
		}
		return []string{lead + "  " + l.paint(dim, about(n.expected))}
	case state == isRunning:
		return n.drawRunning(now, l, level, lead, at)
	case state == isStopped:
		return []string{lead + "  " + l.paint(dim, stoppedWords(n.begun()))}
	}
	line := lead + "  " + pad(took(n.turn.Ended.Sub(n.turn.Began)), clockCells)
	if away := n.turn.Away(); away > 0 {
		line += "  away " + took(away)
	}
	if text := n.text(); text != "" {
		line += "  " + l.paint(map[bool]string{true: red, false: dim}[state == isFailed], text)
	}
	return []string{line}
}

func stoppedWords(begun bool) string {
	return map[bool]string{true: "stopped before it was done", false: "not started"}[begun]
}

func (n *node) awayWords(now time.Time) string {
	text := took(now.Sub(n.turn.AwayFrom))
	if n.outage > 0 {
		text += " of ~" + strings.TrimPrefix(about(n.outage), "about ")
	}
	return text
}

func (n *node) late(now time.Time) bool { return n.outage > 0 && now.Sub(n.turn.AwayFrom) > n.outage }

// clockCells is the width of most durations.
const clockCells = 6

func (n *node) drawRunning(now time.Time, l Look, level detail, lead string, at *story.Stage) []string {
	line := lead + "  " + pad(took(now.Sub(n.turn.Began)), clockCells)
	if n.isAway() {
		colour := yellow
		if n.late(now) {
			colour = red
		}
		line += "  " + l.paint(colour, "away "+n.awayWords(now))
	} else if away := n.turn.Away(); away > 0 {
		line += "  away " + took(away)
	}
	if at == nil {
		return []string{line}
	}
	line += "  " + at.Title
	if d := now.Sub(at.Began).Round(time.Second); d > 0 {
		line += "  " + l.paint(dim, d.String())
	}
	if level >= lean {
		return []string{line}
	}
	return append([]string{line}, noteLines(now, l, "      ", at)...)
}

func (b *Board) totals(now time.Time, l Look) []string {
	if len(b.nodes) == 0 {
		return nil
	}
	count := map[nodeState]int{}
	for _, n := range b.nodes {
		count[n.state()]++
	}
	parts := []string{fmt.Sprintf("%d of %d %s done", count[isDone], len(b.nodes), words.Plural(len(b.nodes), "node"))}
	for _, c := range []struct {
		of     nodeState
		colour string
		what   string
	}{{isFailed, red, "failed"}, {isRunning, yellow, "in progress"}, {isWaiting, "", "to go"}, {isStopped, "", "not done"}} {
		if count[c.of] == 0 {
			continue
		}
		text := fmt.Sprintf("%d %s", count[c.of], c.what)
		if c.colour != "" {
			text = l.paint(c.colour, text)
		}
		parts = append(parts, text)
	}
	line := strings.Join(parts, ", ") + "; " + took(b.until(now).Sub(b.began)) + " so far"
	if left := b.left(now); left > 0 && b.ended.IsZero() {
		line += ", " + about(left) + " more"
	}
	return []string{line}
}

// left estimates the remaining time: the plan's total, which accounts for parallelism, times the share of the nodes'
// remaining work, corrected by how long the finished nodes took.
func (b *Board) left(now time.Time) time.Duration {
	var all, rest, expected, taken time.Duration
	for _, n := range b.nodes {
		all += n.expected
		switch n.state() {
		case isDone:
			if n.expected > 0 && n.turn.Status == done {
				expected, taken = expected+n.expected, taken+n.turn.Ended.Sub(n.turn.Began)
			}
		case isWaiting:
			if b.end < stopping {
				rest += n.expected
			}
		case isRunning:
			rest += max(0, n.expected-now.Sub(n.turn.Began))
		}
	}
	if all == 0 {
		return 0
	}
	left := float64(b.total) * float64(rest) / float64(all)
	if expected > 0 {
		left *= float64(taken) / float64(expected)
	}
	return time.Duration(left)
}

// dialogue says what a Ctrl-C would do or has done.
func (b *Board) dialogue(l Look) []string {
	var out, waiting []string
	for _, n := range b.nodes {
		switch n.state() {
		case isRunning:
			out = append(out, n.name)
		case isWaiting:
			waiting = append(waiting, n.name)
		}
	}
	switch {
	case !b.ended.IsZero() || b.end == notStoppable:
		return nil
	case b.end == canStop:
		return []string{l.paint(dim, "Ctrl-C: finish the current nodes, then stop")}
	case b.end == broken:
		return []string{l.paint(red, "stopping now: run the same command again to resume")}
	}
	text := "stopping: what has begun is finished first"
	if len(out) > 0 {
		text = fmt.Sprintf("stopping: %s %s finished first", names(out, 3), map[bool]string{true: "is", false: "are"}[len(out) == 1])
	}
	if len(waiting) > 0 {
		text += fmt.Sprintf("; %s %s not started", names(waiting, 2), map[bool]string{true: "is", false: "are"}[len(waiting) == 1])
	}
	return []string{
		l.paint(yellow, text),
		l.paint(yellow, "Ctrl-C again: stop at once; run the same command again to resume"),
	}
}

// Now is the state of a board at a moment, for pages that lay the board out in another way than a frame.
type Now struct {
	Note   string // the latest about the whole run
	Totals string // "1 of 3 nodes done, …"
	Steps  []StepNow
	Nodes  []NodeNow
}

type StepNow struct {
	Title, Note string
	Mood        string // "good", "bad", "open": it runs
	Took        string
	Percent     int // of a transfer; 0: the step is no transfer
}

type NodeNow struct {
	Node, Strategy string
	State, Mood    string // Mood as in StepNow; "": it has not begun
	Took, Text     string
	Away           string // "2m of ~5m"
	Late           bool   // it is down for longer than expected
	Percent        int    // of the expected time, while it is in progress
	Step           *StepNow
}

func (b *Board) Now(now time.Time) Now {
	out := Now{Note: b.note}
	for _, line := range b.totals(now, Look{}) {
		out.Totals = line
	}
	for _, s := range b.others {
		if !s.Branch || s.Status == failed {
			out.Steps = append(out.Steps, stepNow(s, now))
		}
	}
	out.Nodes = append(out.Nodes, cluster.Each(b.nodes, func(n *node) NodeNow { return n.now(now) })...)
	return out
}

func stepNow(s *story.Stage, now time.Time) StepNow {
	out := StepNow{Title: s.Title, Note: text(s), Mood: "open", Took: took(now.Sub(s.Began))}
	if !s.Ended.IsZero() {
		out.Mood, out.Took = "good", took(s.Ended.Sub(s.Began))
		if s.Status == failed {
			out.Mood = "bad"
		}
		return out
	}
	if done, total, rest, ok := images.ReadProgress(s.Note); ok {
		out.Percent, out.Note = int(100*done/max(1, total)), rest
	} else if age := now.Sub(s.NoteAt).Round(time.Second); s.Note != "" && age >= stale {
		out.Note += " (" + age.String() + " ago)"
	}
	return out
}

func (n *node) now(now time.Time) NodeNow {
	out := NodeNow{Node: n.name, Strategy: n.strategy(), Text: n.text()}
	if at := n.current(); at != nil {
		s := stepNow(at, now)
		out.Step = &s
	}
	t := n.turn
	if away := t.Away(); away > 0 {
		out.Away = took(away)
	}
	switch n.state() {
	case isWaiting:
		if out.State = "to go"; n.expected > 0 {
			out.Text = about(n.expected)
		}
	case isRunning:
		out.State, out.Mood, out.Took = "in progress", "open", took(now.Sub(t.Began))
		if n.expected > 0 {
			out.Percent = int(min(99, 100*now.Sub(t.Began)/n.expected))
		}
		if n.isAway() {
			out.Away, out.Late = n.awayWords(now), n.late(now)
		}
	case isStopped:
		out.State = stoppedWords(n.begun())
	case isFailed:
		out.State, out.Mood, out.Took = "failed", "bad", took(t.Ended.Sub(t.Began))
	case isDone:
		out.State, out.Mood, out.Took = "done", "good", took(t.Ended.Sub(t.Began))
	}
	return out
}
