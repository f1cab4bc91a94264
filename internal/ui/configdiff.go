package ui

import (
	"fmt"
	"io"

	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/pipeline"
)

// WriteConfigDiffs prints what the configurations in talos.machineConfigs would change.
func WriteConfigDiffs(w io.Writer, format string, res pipeline.ConfigDiffs) error {
	return write(w, format, res, func(p *page) {
		for _, d := range res.Nodes {
			drawConfigDiff(p, d)
		}
		p.wrapped("", "  ", configSum(res))
	})
}

func drawConfigDiff(p *page, d pipeline.ConfigDiff) {
	state, colour := "same", green
	switch {
	case d.Unread != "":
		state, colour = "unread", red
	case len(d.Changes) > 0:
		state, colour = "differs", yellow
	case !d.Kept:
		state, colour = "as is", dim
	}
	p.line("%s %s", p.paint(colour, fmt.Sprintf("%-7s", state)), d.Node)
	if d.Unread != "" {
		p.wrapped("    ", "      ", foreign.Line(d.Unread))
	}
	for _, c := range d.Changes {
		p.wrapped("    ", "      ", foreign.Line(drawChange(c)))
	}
}

func configSum(res pipeline.ConfigDiffs) string {
	kept := 0
	for _, d := range res.Nodes {
		if d.Kept {
			kept++
		}
	}
	sum := fmt.Sprintf("%d of %s differ from talos.machineConfigs", res.Differ, counted(len(res.Nodes), "node"))
	if res.Same {
		sum = counted(kept, "node") + " as in talos.machineConfigs"
	}
	if res.Unread > 0 {
		sum += fmt.Sprintf(", %d could not be compared", res.Unread)
	}
	if others := len(res.Nodes) - kept; others > 0 {
		sum += fmt.Sprintf("; %s without a configuration there, as is", counted(others, "node"))
	}
	return sum
}
