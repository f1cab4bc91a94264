// Package live draws a run while it is in progress: a tree on a terminal that
// shows what each node is at, or its events as JSON lines. It only looks: whatever
// becomes of the terminal, the run goes on.
package live

import (
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// Board is how a run stands, by its plan and by what its steps have told so far.
type Board struct {
	title string // "recast roll"
	began time.Time
	ended time.Time     // zero: it goes on
	total time.Duration // that its plan is expected to take; 0: nobody knows
	said  *entry        // what is told of the run as a whole
	end   ending
	lines []string // what there is instead of steps

	phases map[cluster.Phase]string // their titles, once they have begun
	nodes  []*node                  // in the plan's order, then as they were come to
	others []*entry                 // steps about no node, in the order in which they began
	byPath map[string]*entry
}

// ending is how far somebody has gone about stopping the run.
type ending int

const (
	goesOn   ending = iota
	canStop         // a first Ctrl-C lets the nodes that are out be finished
	stopping        // it was pressed
	broken          // it was pressed again
)

// entry is one step.
type entry struct {
	path, title  string
	status       step.Status
	began, ended time.Time
	text         string // what was told last
	told         time.Time
	branch       bool // it has steps below it
}

func (e *entry) runs() bool { return e.status == step.Started }

// node is one node of the roll.
type node struct {
	name     string
	phase    cluster.Phase
	strategy string
	outage   time.Duration // expected; 0: unknown
	takes    time.Duration // the same of the whole roll of it

	begun        bool
	status       step.Status // once it has begun
	began, ended time.Time
	awaySince    time.Time
	away         time.Duration // once it is back
	text         string        // how it ended
	running      []*entry      // steps below, in the order in which they began
}

// NewBoard is the board of a command that began then.
func NewBoard(title string, began time.Time) *Board {
	return &Board{title: title, began: began, phases: map[cluster.Phase]string{}, byPath: map[string]*entry{}}
}

// Plan says what is about to be done from that time on. What was done before it is
// told of no more.
func (b *Board) Plan(at time.Time, plan cluster.Plan) {
	b.forget()
	b.began = at
	b.total = time.Duration(plan.TotalSeconds) * time.Second
	for _, p := range plan.Work() {
		n := b.node(p.Phase, p.Node)
		n.strategy = string(p.Strategy)
		n.outage = time.Duration(p.OutageSeconds) * time.Second
		n.takes = max(n.outage, time.Duration(p.WholeSeconds)*time.Second)
	}
}

// forget clears the board of what has been told for good.
func (b *Board) forget() {
	b.said, b.nodes, b.others, b.total = nil, nil, nil, 0
	b.phases, b.byPath = map[cluster.Phase]string{}, map[string]*entry{}
}

// See takes in what happened at a time.
func (b *Board) See(at time.Time, e step.Event) {
	if e.Status == step.Note && !strings.Contains(e.Path, "/") && b.byPath[e.Path] == nil {
		b.said = &entry{path: e.Path, text: oneLine(e.Text), told: at}
		return
	}
	own := b.entry(e.Path)
	if e.Status == step.Note {
		if text := oneLine(e.Text); text != own.text {
			own.text, own.told = text, at
		}
	} else {
		own.happens(at, e)
	}
	phase, name, below := cluster.NodeOfStep(e.Path)
	switch {
	case name != "" && len(below) == 0:
		b.node(phase, name).itself(at, e)
	case name != "":
		b.node(phase, name).below(at, e, below, own)
	case e.Path == "roll":
	case isPhase(e.Path):
		b.phases[cluster.Phase(strings.TrimPrefix(e.Path, "roll/"))] = e.Title
	case e.Status != step.Note && own.began == at && !own.listed(b):
		b.others = append(b.others, own)
	}
}

// isPhase says whether a step is one of a roll's phases.
func isPhase(path string) bool {
	_, name, _ := cluster.NodeOfStep(path + "/any")
	return name != "" && strings.Count(path, "/") == 1
}

func (e *entry) listed(b *Board) bool {
	return slices.Contains(b.others, e)
}

// entry returns the step at a path, and notes that those above it are branches.
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

func (e *entry) happens(at time.Time, ev step.Event) {
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
	e.ended, e.told = at, at
}

// node returns a node of a phase: what an earlier run left is finished first, and
// the same node may come again after it.
func (b *Board) node(phase cluster.Phase, name string) *node {
	for _, n := range b.nodes {
		if n.name == name && n.phase == phase {
			return n
		}
	}
	n := &node{name: name, phase: phase}
	b.nodes = append(b.nodes, n)
	return n
}

// itself takes in what happened to the branch of the node.
func (n *node) itself(at time.Time, e step.Event) {
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

// below takes in what happened to a step of the node.
func (n *node) below(at time.Time, e step.Event, below []string, own *entry) {
	switch e.Status {
	case step.Note:
		return
	case step.Started:
		n.running = append(n.running, own)
		switch {
		case below[0] == "ask-gates-again" || below[0] == "run-hooks-again":
			n.back(at)
		case pipeline.TakesAway(below) && n.awaySince.IsZero() && n.away == 0:
			n.awaySince = at
		}
		return
	case step.Failed:
		if n.text == "" { // the innermost fails first
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

// current is the innermost of the steps that run now; nil: none does.
func (n *node) current() *entry {
	if len(n.running) == 0 {
		return nil
	}
	return n.running[len(n.running)-1]
}

// CanStop says that a first Ctrl-C finishes the nodes that are out; Stopping, that
// it was pressed; Broken, that it was pressed again.
func (b *Board) CanStop() { b.end = max(b.end, canStop) }

// Stopping says that no further node starts.
func (b *Board) Stopping() { b.end = max(b.end, stopping) }

// Broken says that the run stops where it is.
func (b *Board) Broken() { b.end = broken }

// End says when the run ended: what has not begun by then does not begin any more.
func (b *Board) End(at time.Time) {
	b.ended = at
	for _, n := range b.nodes {
		if !n.begun {
			n.status = step.NotStarted
		}
	}
}

// oneLine is a text as one line that is printable, without gaps.
func oneLine(text string) string { return strings.Join(strings.Fields(foreign.Line(text)), " ") }
