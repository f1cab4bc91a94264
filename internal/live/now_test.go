package live

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A board at a moment says what its frames say.
func TestNow(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"build":    {"fetch the boot ISO and compare what it holds with the lock open 12s 25%"},
		"early":    {"wk1 to go: have wk1 fetch its installer", "save a snapshot of etcd to backups open 31s 0% 40 MiB (11s ago)"},
		"middle":   {"cp1 done good took 1m37s away 1m36s: runs v1.13.9 build abcdef012345", "wk1 in progress open took 1m45s away 1m15s of ~4m 35%: wait until wk1 is healthy", "wk3 to go: about 5m"},
		"failed":   {"wk2 failed bad took 10s: check that it is safe to take wk2 out: no quorum", "wk3 not started"},
		"broken":   {"wk1 stopped before it was done"},
		"stopping": {"wk2 in progress"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := boards[name]
			board := tc.tell()
			now := board.Now(at(tc.seconds))
			var got []string
			for _, n := range now.Nodes {
				got = append(got, said(n))
			}
			for _, s := range now.Steps {
				got = append(got, fmt.Sprintf("%s %s %s %d%% %s", s.Title, s.Mood, s.Took, s.Percent, s.Note))
			}
			for _, line := range want {
				if !strings.Contains(strings.Join(got, "\n"), line) {
					t.Errorf("without %q:\n%s", line, strings.Join(got, "\n"))
				}
			}
			var totals string
			for _, line := range board.totals(at(tc.seconds), Look{}) {
				totals = line
			}
			if diff := cmp.Diff(totals, now.Totals); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// said is a node in a line.
func said(n NodeNow) string {
	var text strings.Builder
	text.WriteString(n.Node + " " + n.State)
	for _, part := range []struct{ lead, text string }{{"", n.Mood}, {"took ", n.Took}, {"away ", n.Away}} {
		if part.text != "" {
			text.WriteString(" " + part.lead + part.text)
		}
	}
	if n.Percent > 0 {
		text.WriteString(fmt.Sprintf(" %d%%", n.Percent))
	}
	switch {
	case n.Step != nil:
		return text.String() + ": " + n.Step.Title
	case n.Text != "":
		return text.String() + ": " + n.Text
	}
	return text.String()
}
