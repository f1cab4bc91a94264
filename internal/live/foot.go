package live

import (
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/step"
)

// foot is what is always there: how far the run is, and what Ctrl-C does now.
func (b *Board) foot(now time.Time, l Look) []string {
	return append(b.totals(now, l), b.dialogue(l)...)
}

// totals counts the nodes, and says how long the rest is expected to take.
func (b *Board) totals(now time.Time, l Look) []string {
	if len(b.nodes) == 0 {
		return nil
	}
	count := map[standing]int{}
	for _, n := range b.nodes {
		count[n.stands()]++
	}
	parts := []string{fmt.Sprintf("%d of %d nodes done", count[isDone], len(b.nodes))}
	for _, c := range []struct {
		of     standing
		colour string
		what   string
	}{{isFailed, red, "failed"}, {isOut, yellow, "out"}, {isWaiting, "", "to go"}, {isLeft, "", "not done"}} {
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

// left is how long the rest is expected to take: of the plan's own figure, which
// knows what goes side by side, the share of what the nodes have left; by how much
// that is wrong the nodes that are done have shown.
func (b *Board) left(now time.Time) time.Duration {
	var all, rest, expected, taken time.Duration
	for _, n := range b.nodes {
		all += n.takes
		switch n.stands() {
		case isDone:
			if n.takes > 0 && n.status == step.Done {
				expected, taken = expected+n.takes, taken+n.ended.Sub(n.began)
			}
		case isWaiting:
			if b.end < stopping {
				rest += n.takes
			}
		case isOut:
			rest += max(0, n.takes-now.Sub(n.began))
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

// dialogue says what a Ctrl-C would do, or is doing.
func (b *Board) dialogue(l Look) []string {
	var out, waiting []string
	for _, n := range b.nodes {
		switch n.stands() {
		case isOut:
			out = append(out, n.name)
		case isWaiting:
			waiting = append(waiting, n.name)
		}
	}
	switch {
	case !b.ended.IsZero() || b.end == goesOn:
		return nil
	case b.end == canStop:
		return []string{l.paint(dim, "Ctrl-C finishes what is out and starts nothing else")}
	case b.end == broken:
		return []string{l.paint(red, "stopping at once: the same command again goes on where this one stops")}
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
		l.paint(yellow, "Ctrl-C again stops at once, half way; the same command goes on from there"),
	}
}
