package ui

import (
	"fmt"
	"io"

	"github.com/recast-sh/recast/cluster/provenance"
	"github.com/recast-sh/recast/internal/foreign"
)

// WriteProvenance prints the chain from a lock to a running node.
func WriteProvenance(w io.Writer, format string, res provenance.Provenance) error {
	return write(w, format, res, func(p *page) {
		p.line("%s", p.paint(bold, provenanceTitle(res)))
		for _, l := range res.Links {
			lead := fmt.Sprintf("  %s  %-10s  ", p.paint(certain(l.Certainty), fmt.Sprintf("%-12s", l.Certainty)), l.Name)
			p.wrapped(lead, "                            ", foreign.Line(l.Text))
			for _, d := range l.Details {
				p.wrapped("                            - ", "                              ", foreign.Line(d))
			}
		}
		for _, text := range res.Summary {
			p.wrapped("", "  ", text)
		}
	})
}

func provenanceTitle(res provenance.Provenance) string {
	return fmt.Sprintf("%s: %s, %s", res.Node, res.VM, res.Address)
}

func certain(c provenance.Certainty) string {
	switch c {
	case provenance.Proven:
		return green
	case provenance.Contradicted:
		return red
	case provenance.Unknown:
		return yellow
	}
	return dim
}
