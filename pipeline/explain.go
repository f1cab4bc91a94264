package pipeline

import (
	"context"

	"github.com/recast-sh/recast/cluster"
)

// Explain makes the same plan as Plan, and returns the details of one node.
func Explain(ctx context.Context, p Project, m Machines, policy cluster.Policy, rehearse *bool, node string) (cluster.Plan, cluster.Explanation, error) {
	lock, err := p.lock()
	if err != nil {
		return cluster.Plan{}, cluster.Explanation{}, err
	}
	past, err := p.history(lock)
	if err != nil {
		return cluster.Plan{}, cluster.Explanation{}, err
	}
	policy.Rehearse = p.rehearsal(rehearse)
	plan, o, err := p.planSeen(ctx, m, lock, past, policy)
	if err != nil {
		return plan, cluster.Explanation{}, err
	}
	e, err := cluster.Explain(ctx, plan, node, o, past, p.timing())
	return plan, e, err
}
