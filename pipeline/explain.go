package pipeline

import (
	"context"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
)

// Explain makes the same plan as Plan, and returns the details of one node.
func Explain(ctx context.Context, p Project, m Machines, policy planning.Policy, rehearse *bool, node string) (planning.Plan, survey.Explanation, error) {
	lock, err := p.Lock()
	if err != nil {
		return planning.Plan{}, survey.Explanation{}, err
	}
	past, err := p.History(lock)
	if err != nil {
		return planning.Plan{}, survey.Explanation{}, err
	}
	policy.Rehearse = rehearsal(p, rehearse)
	plan, o, err := planSeen(ctx, p, m, Sources(p, m), lock, past, policy)
	if err != nil {
		return plan, survey.Explanation{}, err
	}
	e, err := survey.Explain(ctx, plan, node, o, past, timing(p.Config))
	return plan, e, err
}
