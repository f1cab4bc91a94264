package roll

import (
	"context"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// Roller carries out a plan.
type Roller struct {
	*rolling.Roll
	Files     cluster.FileReader // of the machines
	Objects   cluster.ObjectJudge
	Commands  cluster.CommandRunner
	Rehearser *Rehearser

	ParkingIDs   []cluster.VMID    // VMIDs that a parking VM may take, in order
	VMIDs        cluster.VMIDRange // from recast.yaml; it is written into the records
	DrainForce   bool
	DrainDeletes bool                // deletes pods whose eviction is still refused when a drain times out
	BootFailure  cluster.BootFailure // what to do with a node that does not come back from an in-place upgrade
	SnapshotDir  string              // where snapshots of etcd are saved
	Rebuild      etcd.Source         // what a broken cluster's etcd begins with again
	History      cluster.History

	// MachineConfig returns a node's configuration if the user keeps it in files; found is false if it must be read
	// from the node before the node goes down.
	MachineConfig func(ctx context.Context, node string) (config cluster.Secret, found bool, err error)
	// Hooked, if set, receives the result of each hook.
	Hooked func(planning.HookRun)

	parkingNumbers parking.Numbers
	leaving        leaving
}

// Steps builds the tree of a roll from its plan: a branch per phase, and in it one per node, in the plan's order.
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

// DrawnSteps are the steps of a roll of p for node n, for display only: they can't ask the world what is already done.
func DrawnSteps(p planning.Plan, n planning.NodePlan, t cluster.Timing) ([]step.Step, error) {
	drawn, err := rolling.PlannedExchange(n)
	if err != nil {
		return nil, err
	}
	r := &Roller{Roll: &rolling.Roll{Cluster: p.Cluster, Timing: t, Say: func(string, string) {}}}
	of := r.planned(p, n, n.Phase)
	of.record.drawn = drawn
	return slices.Concat(of.pullSteps(), of.life()), nil
}
