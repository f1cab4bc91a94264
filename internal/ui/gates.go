package ui

import (
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// drawGates says what of the user's own is asked on the way.
func drawGates(p *page, plan cluster.Plan) {
	if len(plan.Gates) == 0 || !slices.ContainsFunc(plan.Nodes, func(n cluster.NodePlan) bool { return n.Strategy != "" }) {
		return
	}
	p.line("%s", p.paint(bold, "gates: asked before each node goes, and once it is back"))
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
		p.wrapped("  ", "    ", text)
	}
	p.line("")
}
