package roll

import (
	"context"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// Steps builds the tree of a roll from its plan: a branch per phase, and in it one per node, in the
// plan's order.
func (r *Roller) Steps(p planning.Plan) step.Step {
	work := p.Work()
	return step.Step{
		ID:    "roll",
		Title: fmt.Sprintf("roll %d of %d %s", len(work), len(p.Nodes), words.Plural(len(p.Nodes), "node")),
		Risk:  step.Destructive, LookAhead: 1,
		Steps: func(context.Context) ([]step.Step, error) {
			steps := r.Rehearser.Steps(p)
			if p.Bootstrap == "" && slices.ContainsFunc(work, planning.NodePlan.NeedsSnapshot) {
				steps = append(steps, r.SnapshotStep(p, r.SnapshotDir))
			}
			for _, b := range p.Batches {
				branch, err := r.phase(p, b)
				if err != nil {
					return nil, err
				}
				steps = append(steps, branch)
			}
			return steps, nil
		},
	}
}

func (r *Roller) phase(p planning.Plan, b planning.Batch) (step.Step, error) {
	var steps, first []step.Step
	ahead := min(b.Limit+1, maxAhead)
	for i, n := range p.Of(b) {
		if len(n.Refused) > 0 {
			return step.Step{}, fault.PlanRefused.Refusedf("node %s: %s", n.Node, n.Refused[0])
		}
		branch := r.planned(p, n, b.Phase).branch()
		branch.Alone = n.OwnPod // its drain ends this run
		steps = append(steps, branch)
		if i < ahead && len(branch.Ahead) > 0 {
			early := branch.Ahead
			first = append(first, step.Step{ID: branch.ID, Title: branch.Title, Quiet: true, Steps: func(context.Context) ([]step.Step, error) { return early, nil }})
		}
	}
	steps = r.hooking().AroundBatch(p.Hooks, b, steps)
	return step.Step{
		ID: string(b.Phase), Title: p.Title(b), Risk: step.Destructive, Limit: b.Limit, LookAhead: ahead, Ahead: first, Beside: b.Beside,
		Steps: func(context.Context) ([]step.Step, error) { return steps, nil },
	}, nil
}

// maxAhead is the maximum number of nodes that fetch their installer ahead of their turn: more
// would only compete for the registry's bandwidth.
const maxAhead = 10

func (n *node) branch() step.Step {
	title := fmt.Sprintf("%s %s (VM %d on %s)", n.Plan.Strategy, n.Plan.Node, n.Plan.VMID, n.Plan.Host)
	if n.Plan.Run != "" {
		title += ", left unfinished by run " + n.Run
	}
	s := step.Step{ID: n.Plan.Node, Title: title, Risk: step.Destructive, Whole: true, Uses: n.Plan.Slots, Ahead: n.RepeatingAll("", n.pullSteps())}
	s.Skip = n.Repeating("", step.Step{Skip: n.finished}).Skip
	s.Lacks = n.unfinished
	s.Steps = func(context.Context) ([]step.Step, error) { return n.life(), nil }
	if !n.Plan.Strategy.KeepsVM() {
		s = n.explained(s)
	}
	return s
}
