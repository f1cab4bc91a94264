package live

import (
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/story"
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
	out := Now{Note: b.note}
	for _, line := range b.totals(now, Look{}) {
		out.Totals = line
	}
	for _, s := range b.others {
		if !s.Branch || s.Status == failed {
			out.Steps = append(out.Steps, stepNow(s, now))
		}
	}
	for _, n := range b.nodes {
		out.Nodes = append(out.Nodes, n.now(now))
	}
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
