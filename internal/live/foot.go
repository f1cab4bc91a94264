package live

import (
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/words"
)

// foot is always visible: progress, and what Ctrl-C does.
func (b *Board) foot(now time.Time, l Look) []string {
	return append(b.totals(now, l), b.dialogue(l)...)
}

// totals counts the nodes and estimates the remaining time.
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

// left estimates the remaining time: the plan's total, which accounts for parallelism,
// times the share of the nodes' remaining work, corrected by how long the finished nodes
// took.
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
