package ui

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
)

// A document is what a command says to people, made once: it is printed as text or Markdown,
// and pages of a browser lay it out in another way, after hide.

// Fact is one thing about a node: "stale: extension …".
type Fact struct{ Label, Text string }

// Mood is that of the fact's label.
func (f Fact) Mood() Mood {
	switch f.Label {
	case factRefused, factLost, factFrees, factUnread:
		return red
	case factDiffers, factStale, factOnly, factFile:
		return yellow
	case factCarried, factBack, factParked:
		return green
	}
	return ""
}

// NodeWords is one node.
type NodeWords struct {
	Node, State string
	Mood        Mood
	Cells       []string // the rest of its row
	Facts       []Fact
}

// row is the node's line.
func (n NodeWords) row(p *page) []string {
	return append([]string{p.paint(n.Mood, n.State), n.Node}, n.Cells...)
}

// said is what its line says besides its name and state.
func (n NodeWords) said() string { return strings.Join(n.Cells, ", ") }

func (n NodeWords) hidden(hide func(string) string) NodeWords {
	n.Cells, n.Facts = each(n.Cells, hide), hiddenFacts(n.Facts, hide)
	return n
}

func hiddenFacts(facts []Fact, hide func(string) string) []Fact {
	return each(facts, func(f Fact) Fact { return Fact{f.Label, hide(f.Text)} })
}

// several is the number of equal nodes from which on they share a line.
const several = 10

// equalNodes prints a row for each node, and its facts below. Many nodes without facts of which
// the rows say the same share a line, which begins with their number and word.
func (p *page) equalNodes(word, below string, nodes []NodeWords) {
	var columns table
	var equal group
	for _, n := range nodes {
		columns.fit(widest, n.row(p))
		if len(n.Facts) == 0 {
			equal.add(n.said(), n.Node)
		}
	}
	for _, n := range nodes {
		switch names := equal.names[n.said()]; {
		case len(n.Facts) > 0 || len(names) < several:
			p.row(columns, "", n.row(p)...)
			p.facts(below, n.Facts)
		case names[0] == n.Node:
			text := fmt.Sprintf("%d nodes, %s %s: %s", len(names), word, n.said(), together(names))
			p.wrapped(p.paint(n.Mood, n.State)+"  ", "    ", text)
		}
	}
}

func (p *page) facts(indent string, facts []Fact) {
	for _, f := range facts {
		switch f.Label {
		case factDiffers:
			p.wrapped(indent, indent+"  ", f.Text)
		case factLost:
			p.wrapped(indent, indent+"  ", p.paint(red, f.Label+": "+f.Text))
		case factWhy:
			p.wrapped(indent+f.Label+": ", indent+"  ", reasons(f.Text))
		default:
			p.wrapped(indent+p.paint(f.Mood(), f.Label+":")+" ", indent+"  ", f.Text)
		}
	}
}

// DriftWords is the drift of all nodes.
type DriftWords struct {
	Sum                   string
	InSync, Stale, Unread int
	Nodes                 []NodeWords
	Unlisted              string // nodes that recast.yaml does not name
	Next                  []string
}

// DriftInWords returns what WriteDrift prints, unread nodes first, then stale ones.
func DriftInWords(res pipeline.DriftResult, hide func(string) string) DriftWords {
	out := DriftWords{
		Sum: hide(driftSum(res)), Stale: res.Stale, Unread: res.Unread,
		Unlisted: hide(unlisted(res)), Next: each(hints(res.Nodes), hide),
	}
	for _, d := range res.Nodes {
		n := driftOf(d).hidden(hide)
		n.Cells[1] = words.Short(d.Build) // the page's column says the rest
		if n.State == wordInSync {
			out.InSync++
		}
		out.Nodes = append(out.Nodes, n)
	}
	rank := func(n NodeWords) int { return slices.Index([]Mood{red, yellow, green}, n.Mood) }
	slices.SortStableFunc(out.Nodes, func(a, b NodeWords) int { return rank(a) - rank(b) })
	return out
}

// PlanWords is a plan.
type PlanWords struct {
	Before   string // the first node: rehearsals
	Phases   []PhaseWords
	Idle     []NodeWords
	Checks   string // surge, gates, storage, hooks
	Warnings string
	Sum      string
	Recreate string // what would let more nodes be recreated
	Next     []string
}

// PhaseWords are the nodes of one phase.
type PhaseWords struct {
	Heading string
	Each    []Fact // that all of its nodes have
	Nodes   []NodeWords
}

// PlanInWords returns what WritePlan and AdvisePlan print.
func PlanInWords(plan planning.Plan, hide func(string) string) PlanWords {
	text := func(draw func(*page, planning.Plan)) string { return hide(textOf(func(p *page) { draw(p, plan) })) }
	hidden := func(n NodeWords) NodeWords { return n.hidden(hide) }
	return PlanWords{
		Before: text(drawRehearsal), Checks: text(drawChecks), Warnings: text(drawPlanWarnings), Sum: text(drawSum),
		Recreate: text(drawPlanToRecreate), Next: each(afterPlan(plan), hide), Idle: each(idleNodes(plan), hidden),
		Phases: each(phases(plan), func(p PhaseWords) PhaseWords {
			return PhaseWords{hide(p.Heading), hiddenFacts(p.Each, hide), each(p.Nodes, hidden)}
		}),
	}
}

// StatusWords is the status of a cluster.
type StatusWords struct {
	Text   string
	Active bool // somebody holds the claim
}

// StatusInWords returns what WriteStatus prints.
func StatusInWords(res pipeline.StatusResult, hide func(string) string) StatusWords {
	return StatusWords{hide(textOf(func(p *page) { drawStatus(p, res) })), res.Claim != nil}
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
