package ui

import (
	"cmp"
	"fmt"
	"io"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/foreign"
)

// WriteProvenance prints the chain from a lock to a running node.
func WriteProvenance(w io.Writer, format string, res observe.Provenance) error {
	return write(w, format, res, func(p *page) {
		p.heading(provenanceTitle(res))
		for _, l := range res.Links {
			lead := fmt.Sprintf("  %s  %-10s  ", p.paint(cmp.Or(certain(l.Certainty), dim), fmt.Sprintf("%-12s", l.Certainty)), l.Name)
			p.wrapped(lead, "                            ", foreign.Line(l.Text))
			p.wrapped("                            - ", "                              ", each(l.Details, foreign.Line)...)
		}
		p.wrapped("", "  ", res.Summary...)
	})
}

func provenanceTitle(res observe.Provenance) string {
	return fmt.Sprintf("%s: %s, %s", res.Node, res.VM, res.Address)
}

// certain is the mood of a certainty.
func certain(c observe.Certainty) Mood {
	switch c {
	case observe.Proven:
		return green
	case observe.Contradicted:
		return red
	case observe.Unknown:
		return yellow
	}
	return ""
}

// ProvenanceWords is the chain from a lock to a running node.
type ProvenanceWords struct {
	Title   string
	Links   []LinkWords
	Summary []string
}

// LinkWords is one link of it.
type LinkWords struct {
	Certainty string
	Mood      Mood
	Name      string
	Text      string
	Details   []string
}

// ProvenanceInWords returns what WriteProvenance prints.
func ProvenanceInWords(res observe.Provenance, hide func(string) string) ProvenanceWords {
	out := ProvenanceWords{Title: hide(provenanceTitle(res)), Summary: each(res.Summary, hide)}
	for _, l := range res.Links {
		text, details := hide(foreign.Line(l.Text)), each(l.Details, hide)
		out.Links = append(out.Links, LinkWords{string(l.Certainty), certain(l.Certainty), l.Name, text, details})
	}
	return out
}
