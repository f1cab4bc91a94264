package ui

import (
	"fmt"
	"io"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
)

// Progress prints the events of a run as plain lines, and records the result of each
// node.
type Progress struct {
	p     *page
	start time.Time
	noted map[string]string // by path, the last note
	width int               // of the column of nodes, as wide as the longest name so far
	run   story.Fold
}

// NewProgress draws on w, which the caller keeps.
func NewProgress(w io.Writer) *Progress {
	return &Progress{p: newPage(w), start: time.Now(), noted: map[string]string{}}
}

// Fared returns the results of the nodes that the run has started, in order. Call it after
// the run has ended.
func (p *Progress) Fared() Fared { return faredOf(p.run.Story) }

// Emit prints one event; the step engine calls it with one event at a time.
func (p *Progress) Emit(e step.Event) {
	s, _ := p.run.See(time.Now(), e)
	switch e.Status {
	case step.Started:
		p.line(e.Path, yellow, "▸", e.Title)
	case step.Note:
		if p.noted[e.Path] == e.Text {
			return // printed already
		}
		p.noted[e.Path] = e.Text
		p.line(e.Path, dim, "·", e.Text)
	case step.Skipped:
		p.line(e.Path, green, "✓", e.Title+": "+e.Text)
	case step.Done:
		// A step that ended at once has its line already.
		if took := s.Ended.Sub(s.Began).Round(time.Second); took > 0 {
			p.line(e.Path, green, "✓", fmt.Sprintf("%s (%s)", e.Title, took))
		}
	case step.Failed:
		// The whole error is printed once, at the end, with its hints.
		p.line(e.Path, red, "✗", e.Title)
	case step.Stopped:
		p.line(e.Path, yellow, "✗", e.Title+": stopped before it was done")
	case step.NotStarted:
		p.line(e.Path, dim, "-", e.Title+": not started")
	}
}

// line prints one line: time, node, indentation, text. Several nodes may be in progress at
// the same time, so every line starts with the node's name.
func (p *Progress) line(path string, mood Mood, mark, text string) {
	at := time.Since(p.start).Round(time.Second)
	_, node, below := planning.NodeOfStep(path)
	if strings.HasPrefix(path, "roll") {
		p.width = max(p.width, nodeColumn, utf8.RuneCountInString(node))
	}
	depth := strings.Count(path, "/")
	if node != "" {
		depth = len(below)
	}
	lead := fmt.Sprintf("%6s  ", at)
	if p.width > 0 {
		lead += fmt.Sprintf("%-*s  ", p.width, node)
	}
	// One event is one line, even if a foreign message contains line breaks.
	p.p.line("%s%s%s %s", lead, strings.Repeat("  ", depth), p.p.paint(mood, mark), strings.Join(strings.Fields(text), " "))
}

// nodeColumn is the initial width of the node column.
const nodeColumn = 8

// Fared is the result of a run, collected from its events.
type Fared struct {
	Nodes    []NodeFared `json:"nodes,omitempty"`
	Snapshot string      `json:"etcdSnapshot,omitempty"` // where etcd was saved
}

// NodeFared is the result of one node in a run.
type NodeFared struct {
	Node     string      `json:"node"`
	Phase    string      `json:"phase"`
	Strategy string      `json:"strategy"`
	Outcome  NodeOutcome `json:"outcome"`
	Now      string      `json:"now,omitempty"`  // in words, its state at the end
	Kept     string      `json:"kept,omitempty"` // in words, where its old system disk is
	// Gates says at which of the user's gates it ended: "before" the node was touched, or
	// "after" it was back and finished.
	Gates string `json:"gates,omitempty"`
	// Hooks is the same for a hook that failed or was interrupted.
	Hooks string `json:"hooks,omitempty"`
	// AwaySeconds is the time from the end of its drain until it was back, or its branch
	// ended; 0 if it was never down.
	AwaySeconds int `json:"awaySeconds,omitempty"`
}

// NodeOutcome is the result of a node's branch.
type NodeOutcome string

// The outcomes of a node.
const (
	NodeDone       NodeOutcome = "done"
	NodeNotNeeded  NodeOutcome = "not needed" // it was up to date when its turn came
	NodeFailed     NodeOutcome = "failed"
	NodeStopped    NodeOutcome = "stopped" // started, but not finished
	NodeNotStarted NodeOutcome = "not started"
)

// faredOf returns the result of a run, from its story.
func faredOf(run story.Story) (fared Fared) {
	for _, s := range run.Steps {
		if s.Path == "roll/snapshot-etcd" && isReached(s) {
			fared.Snapshot = strings.TrimPrefix(s.Text, "saved as ")
		}
	}
	for _, t := range run.Turns {
		if t.Began.IsZero() {
			continue // the node has only pulled something ahead of its turn
		}
		n := NodeFared{
			Node: t.Node, Phase: t.Phase, Strategy: t.Strategy(), Outcome: outcomeOf(t),
			AwaySeconds: int(t.Away().Round(time.Second).Seconds()),
		}
		if n.Outcome == NodeDone || n.Outcome == NodeNotNeeded {
			n.Now = t.Text
		}
		for _, s := range t.Steps {
			n.see(s, t.Below(s))
		}
		fared.Nodes = append(fared.Nodes, n)
	}
	return fared
}

// see adds what a step of the node says.
func (n *NodeFared) see(s *story.Stage, below string) {
	if s.Status == step.Failed.String() {
		switch first, _, _ := strings.Cut(below, "/"); first {
		case "ask-gates", "await-storage", "await-served":
			n.Gates = "before"
		case "ask-gates-again", "await-storage-again", "await-served-again":
			n.Gates = "after"
		case "run-hooks":
			n.Hooks = "before"
		case "run-hooks-again":
			n.Hooks = "after"
		}
	}
	strategy := cluster.Strategy(n.Strategy)
	switch path.Base(below) {
	case "keep":
		if isReached(s) && !strategy.ParksNothing() {
			n.Kept = s.Text
		}
	case "free-disk":
		if isReached(s) && strategy.VM() == cluster.VMGone {
			n.Kept = s.Text
		}
	}
}

// isReached says whether the goal of a step is reached.
func isReached(s *story.Stage) bool {
	return s.Status == step.Done.String() || s.Status == step.Skipped.String()
}

func outcomeOf(t *story.Turn) NodeOutcome {
	switch t.Status {
	case step.Done.String():
		return NodeDone
	case step.Skipped.String():
		return NodeNotNeeded
	case step.NotStarted.String():
		return NodeNotStarted
	case step.Failed.String():
		if !t.Interrupted {
			return NodeFailed
		}
	}
	return NodeStopped
}
