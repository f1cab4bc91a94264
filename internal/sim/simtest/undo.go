package simtest

import (
	"context"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/pipeline"
)

// Undo is recast undo --yes.
func (c *Client) Undo(ctx context.Context, policy planning.Policy, u planning.Undone) (pipeline.Report, error) {
	return connected(ctx, c, func(s *session) (pipeline.Report, error) {
		c.Runner.Emit = c.emit
		o := c.rollOptions(policy)
		o.Undo = u
		return pipeline.Undo(ctx, s.project, s.machines, &c.Runner, o)
	})
}

// Recover is recast undo NODE --cancel --yes.
func (c *Client) Recover(ctx context.Context, node string) (pipeline.Report, error) {
	return c.Undo(ctx, planning.Policy{Only: []string{node}}, planning.Undone{Way: planning.Cancel})
}

// Rollback is recast undo --previous --yes: of the nodes that the policy names, or --all.
func (c *Client) Rollback(ctx context.Context, policy planning.Policy) (pipeline.Report, error) {
	return c.Undo(ctx, policy, planning.Undone{Way: planning.Previous})
}
