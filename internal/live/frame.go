package live

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/story"
)

// detail is the level of detail of a frame: the first level that fits the screen is used.
type detail int

const (
	whole  detail = iota // a line for each node, two for one in progress
	folded               // in each phase, one line for done and one for waiting nodes
	few                  // the same for all phases together; of other steps only running ones
	lean                 // a line for each node in progress or failed
	levels
)

// Frame draws the board, in no more lines than the screen has.
func (b *Board) Frame(now time.Time, l Look) []string {
	head, foot := b.head(now, l), b.foot(now, l)
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

func (l Look) all(parts ...[]string) []string {
	var lines []string
	for _, part := range parts {
		for _, line := range part {
			lines = append(lines, l.fit(line))
		}
	}
	return lines
}

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
	var lines []string
	for _, text := range b.lines {
		lines = append(lines, strings.Split(ansi.Wrap(text, max(1, l.Width), ""), "\n")...)
	}
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

// drawOther draws a step that concerns no node. Below the second level only running and failed
// steps are drawn.
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

// group draws the nodes of one phase, or all of them.
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

// nodeState is the state of a node.
type nodeState int

const (
	isWaiting nodeState = iota
	isRunning
	isDone
	isFailed
	isStopped // stopped, or never to begin
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
	case state == isWaiting && at != nil: // its preparation
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

// awayWords says how long a node is down, and how long that should take.
func (n *node) awayWords(now time.Time) string {
	text := took(now.Sub(n.turn.AwayFrom))
	if n.outage > 0 {
		text += " of ~" + strings.TrimPrefix(about(n.outage), "about ")
	}
	return text
}

// late says whether it is down for longer than expected.
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
