package ui

import (
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
)

// drawGates prints the user's gates.
func drawGates(p *page, plan planning.Plan) {
	lines := gateLines(plan)
	if len(lines) == 0 {
		return
	}
	p.wrapped("", "  ", p.paint(bold, "gates: checked before each node, and when it is back"))
	for _, text := range lines {
		p.wrapped("  ", "    ", text)
	}
	p.line("")
}

// gateLines returns the gates of a plan that does something.
func gateLines(plan planning.Plan) []string {
	if !slices.ContainsFunc(plan.Nodes, func(n planning.NodePlan) bool { return n.Strategy != "" }) {
		return nil
	}
	var lines []string
	for _, g := range plan.Gates {
		text := g.String()
		if text != g.About() {
			text += " (" + g.About() + ")"
		}
		if g.Objects != nil {
			text += ": " + strings.Join(strings.Fields(g.Objects.Expr), " ")
		}
		text += ", within " + minutes(time.Duration(g.TimeoutSeconds)*time.Second)
		if g.BeforeOnly {
			text += ", before only"
		}
		lines = append(lines, text)
	}
	return lines
}
