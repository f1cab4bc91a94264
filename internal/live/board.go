// Package live shows a run in progress: as a tree on a terminal with the current step of
// each node ([View]), or as JSON lines ([Lines]). Whatever happens to the terminal, the
// run continues.
package live

import (
	"slices"
	"strings"
	"time"

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
	note  *entry        // latest note about the whole run
	end   stopState
	lines []string // shown instead of steps

	phases map[planning.Phase]string // titles of the phases that have begun
	nodes  []*node                   // in the plan's order, then by appearance
	others []*entry                  // steps that concern no node, by beginning
	byPath map[string]*entry
}

// stopState is how far the user has stopped the run.
type stopState int

const (
	notStoppable stopState = iota
	canStop                // a first Ctrl-C finishes the current nodes
	stopping               // pressed once
	broken                 // pressed twice
)

// entry is one step.
type entry struct {
	path, title  string
	status       step.Status
	began, ended time.Time
	text         string // latest note or result
	noted        time.Time
	branch       bool // has steps below it
}

func (e *entry) runs() bool { return e.status == step.Started }

// node is one node of the roll.
type node struct {
	name     string
	phase    planning.Phase
	strategy string
	outage   time.Duration // expected; 0: unknown
	expected time.Duration // expected for the node's whole roll

	begun        bool
	status       step.Status // valid once begun
	began, ended time.Time
	awaySince    time.Time
	away         time.Duration // set when it is back
	text         string        // how it ended
	running      []*entry      // its running steps, by beginning
}

// NewBoard is the board of a command that began then.
func NewBoard(title string, began time.Time) *Board {
	return &Board{title: title, began: began, phases: map[planning.Phase]string{}, byPath: map[string]*entry{}}
}

// Plan replaces the board's content by what is planned from then on.
func (b *Board) Plan(at time.Time, plan planning.Plan) {
	b.forget()
	b.began = at
	b.total = time.Duration(plan.TotalSeconds) * time.Second
	for _, p := range plan.Work() {
		n := b.node(p.Phase, p.Node)
		n.strategy = string(p.Strategy)
		n.outage = time.Duration(p.OutageSeconds) * time.Second
		n.expected = max(n.outage, time.Duration(p.WholeSeconds)*time.Second)
	}
}

// forget clears the board after its content was printed to the scrollback.
func (b *Board) forget() {
	b.note, b.nodes, b.others, b.total = nil, nil, nil, 0
	b.phases, b.byPath = map[planning.Phase]string{}, map[string]*entry{}
}

// See adds an event.
func (b *Board) See(at time.Time, e step.Event) {
	if e.Status == step.Note && !strings.Contains(e.Path, "/") && b.byPath[e.Path] == nil {
		b.note = &entry{path: e.Path, text: oneLine(e.Text), noted: at}
		return
	}
	own := b.entry(e.Path)
	if e.Status == step.Note {
		if text := oneLine(e.Text); text != own.text {
			own.text, own.noted = text, at
		}
	} else {
		own.update(at, e)
	}
	phase, name, below := planning.NodeOfStep(e.Path)
	switch {
	case name != "" && len(below) == 0:
		b.node(phase, name).update(at, e)
	case name != "":
		b.node(phase, name).updateStep(at, e, below, own)
	case e.Path == "roll":
	case isPhase(e.Path):
		b.phases[planning.Phase(strings.TrimPrefix(e.Path, "roll/"))] = e.Title
	case e.Status != step.Note && own.began == at && !own.listed(b):
		b.others = append(b.others, own)
	}
}

// isPhase says whether a path is that of one of a roll's phases.
func isPhase(path string) bool {
	_, name, _ := planning.NodeOfStep(path + "/any")
	return name != "" && strings.Count(path, "/") == 1
}

func (e *entry) listed(b *Board) bool {
	return slices.Contains(b.others, e)
}

// entry returns the step at a path and marks its parents as branches.
func (b *Board) entry(path string) *entry {
	if e := b.byPath[path]; e != nil {
		return e
	}
	for at := strings.LastIndexByte(path, '/'); at > 0; at = strings.LastIndexByte(path[:at], '/') {
		if above := b.byPath[path[:at]]; above != nil {
			above.branch = true
		}
	}
	e := &entry{path: path, status: step.NotStarted}
	b.byPath[path] = e
	return e
}

func (e *entry) update(at time.Time, ev step.Event) {
	if ev.Title != "" {
		e.title = oneLine(ev.Title)
	}
	e.status = ev.Status
	if e.began.IsZero() {
		e.began = at
	}
	switch ev.Status {
	case step.Started:
		e.began, e.text = at, ""
		return
	case step.Failed:
		if ev.Err != nil {
			e.text = oneLine(strings.TrimPrefix(ev.Err.Error(), e.path+": "))
		}
	default:
		e.text = oneLine(ev.Text)
	}
	e.ended, e.noted = at, at
}

// node returns a node of a phase. A node can appear in two phases: an unfinished run is
// finished first.
func (b *Board) node(phase planning.Phase, name string) *node {
	for _, n := range b.nodes {
		if n.name == name && n.phase == phase {
			return n
		}
	}
	n := &node{name: name, phase: phase}
	b.nodes = append(b.nodes, n)
	return n
}

// update adds an event of the node's branch.
func (n *node) update(at time.Time, e step.Event) {
	if e.Status == step.Note {
		return
	}
	// The first word of a branch's title is its strategy.
	n.strategy, _, _ = strings.Cut(e.Title, " ")
	n.status = e.Status
	switch e.Status {
	case step.Started:
		n.begun, n.began = true, at
		return
	case step.NotStarted:
		return
	case step.Failed:
		if fault.KindOf(e.Err) == fault.Interrupted {
			n.status = step.Stopped
		}
	case step.Done, step.Skipped:
		n.text = oneLine(e.Text)
	}
	if !n.begun {
		n.begun, n.began = true, at
	}
	n.ended = at
	n.back(at)
}

// updateStep adds an event of one of the node's steps.
func (n *node) updateStep(at time.Time, e step.Event, below []string, own *entry) {
	switch e.Status {
	case step.Note:
		return
	case step.Started:
		n.running = append(n.running, own)
		switch {
		case planning.IsBack(below):
			n.back(at)
		case story.TakesAway(below) && n.awaySince.IsZero() && n.away == 0:
			n.awaySince = at
		}
		return
	case step.Failed:
		if n.text == "" { // the innermost step fails first
			n.text = own.title
			if own.text != "" {
				n.text += ": " + own.text
			}
		}
	}
	for i, r := range n.running {
		if r == own {
			n.running = append(n.running[:i], n.running[i+1:]...)
			return
		}
	}
}

func (n *node) back(at time.Time) {
	if !n.awaySince.IsZero() {
		n.away, n.awaySince = at.Sub(n.awaySince), time.Time{}
	}
}

// current is the innermost running step, or nil.
func (n *node) current() *entry {
	if len(n.running) == 0 {
		return nil
	}
	return n.running[len(n.running)-1]
}

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
		if !n.begun {
			n.status = step.NotStarted
		}
	}
}

// oneLine is text in one printable line, without runs of blanks.
func oneLine(text string) string { return strings.Join(strings.Fields(foreign.Line(text)), " ") }
