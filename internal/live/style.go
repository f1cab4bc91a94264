package live

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
)

// The colours of words.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
	dim    = "2"
)

// Look is the size of a frame, and whether it has colours.
type Look struct {
	Width, Height int
	Colour        bool
}

func (l Look) paint(colour, s string) string {
	if !l.Colour || s == "" {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

// fit truncates a line to the width in cells.
func (l Look) fit(line string) string {
	return strings.TrimRight(ansi.Truncate(line, max(1, l.Width), "…"), " ")
}

// apart puts two texts at the ends of a line; without room it drops the right one.
func (l Look) apart(left, right string) string {
	room := l.Width - ansi.StringWidth(left) - ansi.StringWidth(right)
	if room < 2 {
		return left
	}
	return left + strings.Repeat(" ", min(room, readable)) + right
}

// readable bounds the gap between the two: on a wide screen the right text would look
// unrelated.
const readable = 60

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-ansi.StringWidth(s)))
}

// took is a duration to the second.
func took(d time.Duration) string { return max(0, d).Round(time.Second).String() }

// about is an estimated duration.
func about(d time.Duration) string {
	switch {
	case d < 90*time.Second:
		return fmt.Sprintf("about %ds", int(max(0, d).Round(5*time.Second).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("about %dm", int(d.Round(time.Minute).Minutes()))
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("about %dh%dm", int(d.Hours()), int(d.Minutes())%60)
}

// barCells is the width of a transfer's bar.
const barCells = 20

func bar(done, total int64) string {
	full := int(barCells * max(0, min(done, total)) / max(1, total))
	return "[" + strings.Repeat("█", full) + strings.Repeat("░", barCells-full) + "]"
}

// names lists at most few names and counts the rest.
func names(of []string, few int) string {
	last := ""
	switch {
	case len(of) < 2:
		return strings.Join(of, "")
	case len(of) <= few+1:
		of, last = of[:len(of)-1], of[len(of)-1]
	default:
		of, last = of[:few], fmt.Sprintf("%d more", len(of)-few)
	}
	return strings.Join(of, ", ") + " and " + last
}
