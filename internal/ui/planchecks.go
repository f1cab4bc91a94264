package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/hook"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/words"
)

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

const storageHeading = "storage: no node goes that has the only healthy replica of a volume; it is back once its volumes are whole"

// storageLines returns the storage systems of a plan that does something, and what they are held to.
func storageLines(plan planning.Plan) []string {
	var lines []string
	works := slices.ContainsFunc(plan.Nodes, func(n planning.NodePlan) bool { return n.Strategy != "" })
	for _, s := range plan.Storage {
		if s.Held != "" {
			lines = append(lines, s.Held+": recast roll gives it back")
		}
		if !works {
			continue
		}
		var facts []string
		if s.Volumes > 0 {
			facts = append(facts, words.Counted(s.Volumes, "volume"))
		}
		if s.WaitSeconds > 0 {
			facts = append(facts, fmt.Sprintf("waits %s for a replica that is away", minutes(time.Duration(s.WaitSeconds)*time.Second)))
		}
		text := strings.TrimSuffix(s.Name+": "+strings.Join(facts, ", "), ": ")
		lines = append(lines, text)
	}
	return lines
}

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
