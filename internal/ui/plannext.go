package ui

import (
	"io"
	"slices"

	"github.com/recast-sh/recast/cluster/planning"
)

// AdvisePlan prints what to type next below a plan.
func AdvisePlan(w io.Writer, plan planning.Plan) error {
	p := newPage(w)
	p.next(afterPlan(plan)...)
	return p.err
}

// afterPlan returns what to do next about a plan.
func afterPlan(plan planning.Plan) []string {
	var out []string
	refused := slices.IndexFunc(plan.Nodes, func(n planning.NodePlan) bool { return len(n.Refused) > 0 })
	switch work := plan.Work(); {
	case refused >= 0:
		name := plan.Nodes[refused].Node
		out = append(out, "recast plan --explain "+name+" shows the reasons against each strategy; recast roll --exclude "+name+" leaves it out")
	case len(work) == 0:
	case plan.Run != "":
		out = append(out, "recast status shows where every disk is; recast roll finishes what is unfinished")
	default:
		out = append(out, "recast roll does it; recast plan --explain "+work[0].Node+" shows each disk and step of one node")
	}
	return out
}
