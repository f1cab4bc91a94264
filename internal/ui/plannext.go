package ui

import (
	"io"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// AdvisePlan says below a plan what to type.
func AdvisePlan(w io.Writer, plan cluster.Plan) error {
	p := newPage(w)
	for _, text := range afterPlan(plan) {
		p.wrapped("next: ", "      ", text)
	}
	return p.err
}

// afterPlan is what there is to do about a plan.
func afterPlan(plan cluster.Plan) []string {
	var out []string
	refused := slices.IndexFunc(plan.Nodes, func(n cluster.NodePlan) bool { return len(n.Refused) > 0 })
	switch work := plan.Work(); {
	case refused >= 0:
		name := plan.Nodes[refused].Node
		out = append(out, "recast plan --explain "+name+" says what stands against each strategy; recast roll --exclude "+name+" leaves it out")
	case len(work) == 0:
	case plan.Run != "":
		out = append(out, "recast status says where every disk is; recast roll finishes what was left")
	default:
		out = append(out, "recast roll does it; recast plan --explain "+work[0].Node+" shows each disk and step of one node")
	}
	return out
}
