package planning

import (
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
)

// ForRecover plans to cancel the unfinished replacement of one node.
func ForRecover(clusterName string, wanted []cluster.Wanted, o observe.Observation, node string) (Plan, error) {
	plan := Plan{Cluster: clusterName, MaxUnavailable: 1, PerHost: 1, ControlPlanes: o.ControlPlanes()}
	if err := (Policy{Only: []string{node}}).Check(wanted); err != nil {
		return Plan{}, err
	}
	for i, w := range wanted {
		f := o.Found[i]
		if w.Name != node {
			continue
		}
		if f.Away {
			return Plan{}, fault.As(fault.Refused, fmt.Errorf("node %s: %w", node, errors.Join(f.Errs...)))
		}
		if !f.Open() {
			return Plan{}, nothingToRecover(node, f)
		}
		switch rec := f.Parking.Record; {
		case rec.Rebuild != "" && (rec.Strategy == cluster.Create || o.Dark != nil): // its parking VM has the disks that the node had
			return Plan{}, fault.WithHint(fault.NoWayBack.Refusedf("node %s is part of a rebuild, and its cluster is not there to take it back", node), "%s", observe.RebuildGoesOn)
		case rec.Rebuild != "": // the cluster works again, without a rebuild
			park := *f.Parking
			park.Record.Rebuild = ""
			f.Parking = &park
		case rec.Strategy == cluster.Create:
			return Plan{}, fault.WithHint(fault.NoWayBack.Refusedf("node %s is being made: there is nothing that it was before", node),
				"recast roll finishes it; to give it up, see that VM %d is off and has nothing of worth, then: qm destroy %d; qm set %d --protection 0; qm destroy %d", rec.VMID, rec.VMID, f.Parking.VM.ID, f.Parking.VM.ID)
		case rec.Strategy == cluster.Rollback:
			return Plan{}, fault.WithHint(fault.ParkedHalf.Refusedf("node %s: a rollback of it is unfinished", node), "recast roll finishes that; recast undo %s then goes the other way", node)
		}
		n := ForNode(w, f, o, func(string) ([]cluster.LockedExtension, bool) { return nil, false }, Policy{})
		if n.Strategy != cluster.PutBack {
			n.PutBack("recast undo asked for it")
		}
		n.AskLosses()
		plan.Run, plan.Nodes = n.Run, []NodePlan{n}
	}
	heedOwnPod(&plan, o)
	plan.Order(Policy{})
	plan.Arrange()
	return plan, nil
}

func nothingToRecover(node string, f observe.Found) error {
	if f.Unfinished() {
		return fault.WithHint(fault.ParkedHalf.Refusedf("node %s: an upgrade in place of it is unfinished; its system disk was not replaced, so there is none to put back", node),
			"recast roll finishes the upgrade")
	}
	err := fault.NoWayBack.Refusedf("node %s: no replacement of it is unfinished, so there is nothing to recover from", node)
	if _, _, kept := f.LastKept(); kept {
		return fault.WithHint(err, "recast undo %s boots the system disk that it had before its last roll", node)
	}
	return fault.WithHint(err, "recast status says what is unfinished")
}
