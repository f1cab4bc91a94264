package live

import (
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/step"
)

// Now is a board at a moment, for a page that lays it out in another way than a frame.
type Now struct {
	Note   string // the latest about the whole run
	Totals string // "1 of 3 nodes done, …"
	Steps  []StepNow
	Nodes  []NodeNow
}

// StepNow is a step.
type StepNow struct {
	Title, Note string
	Mood        string // "good", "bad", "open": it runs
	Took        string
	Percent     int // of a transfer; 0: it is none
}

// NodeNow is a node.
type NodeNow struct {
	Node, Strategy string
	State, Mood    string // Mood as in StepNow; "": it has not begun
	Took, Text     string
	Away           string // "2m of ~5m"
	Late           bool   // it is down for longer than expected
	Percent        int    // of the expected time, while it is in progress
	Step           *StepNow
}

// Now describes the board.
func (b *Board) Now(now time.Time) Now {
	out := Now{}
	if b.note != nil {
		out.Note = b.note.text
	}
	for _, line := range b.totals(now, Look{}) {
		out.Totals = line
	}
	for _, e := range b.others {
		if !e.branch || e.status == step.Failed {
			out.Steps = append(out.Steps, e.now(now))
		}
	}
	for _, n := range b.nodes {
		out.Nodes = append(out.Nodes, n.now(now))
	}
	return out
}

func (e *entry) now(now time.Time) StepNow {
	s := StepNow{Title: e.title, Note: e.text, Mood: "open", Took: took(now.Sub(e.began))}
	if !e.runs() {
		s.Mood, s.Took = "good", took(e.ended.Sub(e.began))
		if e.status == step.Failed {
			s.Mood = "bad"
		}
		return s
	}
	if done, total, rest, ok := images.ReadProgress(e.text); ok {
		s.Percent, s.Note = int(100*done/max(1, total)), rest
	} else if age := now.Sub(e.noted).Round(time.Second); e.text != "" && age >= stale {
		s.Note += " (" + age.String() + " ago)"
	}
	return s
}

func (n *node) now(now time.Time) NodeNow {
	out := NodeNow{Node: n.name, Strategy: n.strategy, Text: n.text}
	if at := n.current(); at != nil {
		s := at.now(now)
		out.Step = &s
	}
	if n.away > 0 {
		out.Away = took(n.away)
	}
	switch n.state() {
	case isWaiting:
		if out.State = "to go"; n.expected > 0 {
			out.Text = about(n.expected)
		}
	case isRunning:
		out.State, out.Mood, out.Took = "in progress", "open", took(now.Sub(n.began))
		if n.expected > 0 {
			out.Percent = int(min(99, 100*now.Sub(n.began)/n.expected))
		}
		if !n.awaySince.IsZero() {
			out.Away, out.Late = n.awayWords(now), n.late(now)
		}
	case isStopped:
		out.State = stoppedWords(n.begun)
	case isFailed:
		out.State, out.Mood, out.Took = "failed", "bad", took(n.ended.Sub(n.began))
	case isDone:
		out.State, out.Mood, out.Took = "done", "good", took(n.ended.Sub(n.began))
	}
	return out
}
