package planning

import (
	"context"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
)

// ForUndo plans to undo what the last run did to the named nodes: to cancel it where it is unfinished
// (ForRecover), else to boot the system disks that it replaced (ForRollback). With no names, it is about the
// unfinished node, else about every node whose system disk the latest run replaced. command is what it
// comes to: "recover" or "rollback".
func ForUndo(ctx context.Context, clusterName string, wanted []cluster.Wanted, o observe.Observation, talos cluster.TalosReader, m cluster.Maintenance, p Policy) (plan Plan, command string, err error) {
	if err := p.Check(wanted); err != nil {
		return Plan{}, "", err
	}
	var open, last []string
	latest := ""
	for i, w := range wanted {
		if !p.Selects(w.Name) {
			continue
		}
		if o.Found[i].Open() {
			open = append(open, w.Name)
		}
		kept, _, ok := o.Found[i].LastKept()
		if !ok {
			continue
		}
		if kept.Run > latest { // run IDs begin with their time
			latest, last = kept.Run, nil
		}
		if kept.Run == latest {
			last = append(last, w.Name)
		}
	}
	switch {
	case len(open) == 1 && len(p.Only) <= 1:
		plan, err = ForRecover(clusterName, wanted, o, open[0])
		return plan, "recover", err
	case len(open) > 0:
		return Plan{}, "", fault.WithHint(fault.ParkedHalf.Refusedf("%s: an earlier run is not finished", strings.Join(open, ", ")), "cancel it for one node after the other: recast undo %s", open[0])
	case len(p.Only) == 0 && len(last) == 0:
		return Plan{}, "", fault.NoWayBack.Refusedf("nothing is unfinished, and no earlier system disk of a node is parked: %s", cluster.PreviousLock)
	case len(p.Only) == 0:
		p.Only = last
	}
	plan, err = ForRollback(ctx, clusterName, wanted, o, talos, m, p)
	return plan, "rollback", err
}
