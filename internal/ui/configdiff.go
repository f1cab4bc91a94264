package ui

import (
	"fmt"
	"io"
	"slices"

	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/pipeline/configs"
)

// WriteConfigDiffs prints what the configurations in talos.machineConfigs would change.
func WriteConfigDiffs(w io.Writer, format string, res configs.Diffs) error {
	return write(w, format, res, func(p *page) {
		for _, d := range res.Nodes {
			drawConfigDiff(p, d)
		}
		p.wrapped("", "  ", configSum(res))
	})
}

func drawConfigDiff(p *page, d configs.Diff) {
	state, mood := "same", green
	switch {
	case len(d.Unread) > 0:
		state, mood = "unread", red
	case len(d.Refused) > 0:
		state, mood = "refused", red
	case len(d.Changes) > 0:
		state, mood = "differs", yellow
	case !d.Wanted:
		state, mood = "none", dim
	case d.New:
		state, mood = "new", yellow
	case d.Reset:
		state, mood = "reset", yellow
	}
	p.line("%s %s", p.paint(mood, fmt.Sprintf("%-7s", state)), d.Node)
	p.wrapped("    ", "      ", each(slices.Concat(d.Unread, d.Refused), foreign.Line)...)
	p.changes("    ", d.Changes)
	p.wrapped("    ", "      ", d.Notes...)
}

func configSum(res configs.Diffs) string {
	wanted := 0
	for _, d := range res.Nodes {
		if d.Wanted {
			wanted++
		}
	}
	sum := fmt.Sprintf("%d of %d configurations differ", res.Differ, wanted)
	if res.Unread > 0 {
		sum += fmt.Sprintf(", %d could not be compared", res.Unread)
	}
	if none := len(res.Nodes) - wanted; none > 0 {
		sum += fmt.Sprintf("; nodes without one in talos.machineConfigs: %d", none)
	}
	return sum
}
