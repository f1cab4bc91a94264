package roll

import (
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/step"
)

// DrawnSteps are the steps of a roll of p for node n, for display only: they can't ask the world
// what is already done.
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
