package ui

import (
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/hook"
	"github.com/recast-sh/recast/cluster/planning"
)

// hookPoints says in words when the hooks of a point run.
var hookPoints = map[cluster.HookPoint]string{
	cluster.BeforeRun: "before the run", cluster.AfterRun: "after the run, with any result",
	cluster.BeforeBatch: "before each batch", cluster.AfterBatch: "after each batch",
	cluster.BeforeNode: "before each node", cluster.AfterNode: "when each node is back",
}

// hookLines returns the hooks of a plan that does something.
func hookLines(plan planning.Plan) []string {
	if !slices.ContainsFunc(plan.Nodes, func(n planning.NodePlan) bool { return n.Strategy != "" }) {
		return nil
	}
	var lines []string
	for _, point := range hook.Points() {
		for _, h := range plan.Hooks.At(point) {
			text := hookPoints[point] + ": " + h.String()
			if h.Description != "" {
				text += " (" + h.About() + ")"
			}
			lines = append(lines, text+", within "+minutes(h.Timeout()))
		}
	}
	return lines
}

// drawHooked prints the number of hooks that ran, and the failures.
func drawHooked(p *page, hooks []hook.HookRun) {
	if len(hooks) == 0 {
		return
	}
	var took float64
	for _, h := range hooks {
		took += h.Seconds
	}
	p.line("  %s ran, for %s in all", counted(len(hooks), "hook"), time.Duration(took*float64(time.Second)).Round(time.Second))
	for _, h := range hooks {
		if h.Error == "" {
			continue
		}
		what := string(h.Point)
		if h.Node != "" {
			what += " of " + h.Node
		} else if h.Batch != "" {
			what += " of " + string(h.Batch)
		}
		p.wrapped(p.paint(red, "  hook failed: "), "      ", what+": "+h.Error)
	}
}
