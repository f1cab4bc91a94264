package ui

import (
	"fmt"
	"strings"
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
