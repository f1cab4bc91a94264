package live

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/story"
)

const (
	screenshot = "../../docs/images/live.svg"
	recorded   = "testdata/lab-roll.jsonl" // log of a roll in recast lab up
	recordedBy = "testdata/lab-plan.json"  // its plan
)

// TestScreenshot compares the picture in docs with what the live view draws of a recorded
// roll; to update it: go test ./internal/live -run Screenshot -update.
func TestScreenshot(t *testing.T) {
	t.Parallel()
	b, now := replay(t, "cp2", "stage rebooting")
	look := Look{Width: 96, Height: 24, Colour: true}
	got := svg(b.Frame(now, look), look.Width)
	if *update {
		if err := os.WriteFile(screenshot, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(screenshot)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not current (-want +got):\n%s", screenshot, diff)
	}
}

// replay is the board of the recorded roll, just after a given note of a node.
func replay(t *testing.T, node, seen string) (*Board, time.Time) {
	t.Helper()
	log, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(recordedBy)
	if err != nil {
		t.Fatal(err)
	}
	var plan planning.Plan
	if err := json.Unmarshal(text, &plan); err != nil {
		t.Fatal(err)
	}
	b := NewBoard("recast roll", time.Time{})
	for text := range bytes.Lines(log) {
		var l story.Line
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatal(err)
		}
		if b.began.IsZero() && l.Step == "roll" {
			b.Plan(l.Time, plan)
			b.CanStop()
		}
		b.logged(text)
		if l.Node == node && strings.Contains(l.Text, seen) {
			return b, l.Time.Add(2 * time.Second)
		}
	}
	t.Fatalf("%s: %s is never seen at %q", recorded, node, seen)
	return nil, time.Time{}
}

// The picture's terminal.
const (
	cellWidth, lineHeight, margin = 8.4, 19, 16
)

var (
	inks  = map[string]string{red: "#ff6b6b", green: "#69db7c", yellow: "#ffd43b", dim: "#868e96"}
	spans = regexp.MustCompile("\x1b\\[([0-9]*)m")
)

// svg is a frame as a picture, with its colours.
func svg(lines []string, columns int) string {
	var out strings.Builder
	width, height := float64(columns)*cellWidth+2*margin, len(lines)*lineHeight+2*margin
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="14">`+"\n", width, height)
	fmt.Fprintf(&out, `<rect width="100%%" height="100%%" rx="8" fill="#1c1e22"/>`+"\n")
	for i, text := range lines {
		column := 0
		ink, weight := "#dee2e6", "normal"
		for text != "" {
			at := spans.FindStringSubmatchIndex(text)
			part := text
			if at != nil {
				part = text[:at[0]]
			}
			if n := len([]rune(part)); strings.TrimSpace(part) != "" {
				fmt.Fprintf(&out, `<text x="%.1f" y="%d" fill="%s" font-weight="%s" textLength="%.1f" xml:space="preserve">%s</text>`+"\n",
					margin+float64(column)*cellWidth, margin+(i+1)*lineHeight-5, ink, weight, float64(n)*cellWidth, html.EscapeString(part))
			}
			column += len([]rune(part))
			if at == nil {
				break
			}
			switch code := text[at[2]:at[3]]; code {
			case bold:
				weight = "bold"
			case "0":
				ink, weight = "#dee2e6", "normal"
			default:
				ink = inks[code]
			}
			text = text[at[1]:]
		}
	}
	out.WriteString("</svg>\n")
	return out.String()
}
