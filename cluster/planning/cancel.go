package planning

import (
	"errors"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
)

// forCancel plans to cancel the unfinished replacement of one node.
func forCancel(clusterName string, wanted []cluster.Wanted, o observe.Observation, node string) (Plan, error) {
	plan := Plan{Cluster: clusterName, MaxUnavailable: 1, PerHost: 1, ControlPlanes: o.ControlPlanes()}
	for i, w := range wanted {
		f := o.Found[i]
		if w.Name != node {
			continue
		}
		if f.Away {
			return Plan{}, fault.As(fault.Refused, fmt.Errorf("node %s: %w", node, errors.Join(f.Errs...)))
		}
		if !f.Open() {
			return Plan{}, nothingToCancel(node, f)
		}
		switch rec := f.Parking.Record; {
		case rec.Rebuild != "" && (rec.Strategy.From() == cluster.Nowhere || o.Dark != nil): // its parking VM has the disks that the node had
			return Plan{}, fault.WithHint(fault.NoWayBack.Refusedf("node %s is part of a rebuild, and its cluster is not there to take it back", node), "%s", observe.RebuildGoesOn)
		case rec.Rebuild != "": // the cluster works again, without a rebuild
			park := *f.Parking
			park.Record.Rebuild = ""
			f.Parking = &park
		case rec.Strategy.From() == cluster.Nowhere:
			return Plan{}, fault.WithHint(fault.NoWayBack.Refusedf("node %s is being made: there is nothing that it was before", node),
				"%s", giveUp(f))
		case rec.Strategy.System() == cluster.SystemKept:
			return Plan{}, fault.WithHint(fault.ParkedHalf.Refusedf("node %s: a rollback of it is unfinished", node), "recast roll finishes that; recast undo %s then goes the other way", node)
		}
		n := ForNode(w, f, o, func(string) (cluster.LockedContent, bool) { return cluster.LockedContent{}, false }, Policy{})
		if n.Strategy.From() != cluster.Halfway {
			n.PutBack("recast undo asked for it")
		}
		n.AskLosses()
		plan.Run, plan.Nodes = n.Run, []NodePlan{n}
	}
	heedOwnPod(&plan, o)
	heedKubeSpan(&plan, o)
	plan.Order(Policy{})
	plan.Arrange()
	return plan, nil
}

// giveUp says how to give up the making of a node. Only what that run alone has made, and nothing has used, is to
// be deleted: a control plane may be a member of etcd already.
func giveUp(f observe.Found) string {
	rec, park := f.Parking.Record, f.Parking.VM
	text := fmt.Sprintf("recast roll finishes it; recast remove %s then takes it away, and keeps its disks", rec.Node)
	destroy := func(id cluster.VMID) string { return fmt.Sprintf("qm set %d --protection 0 && qm destroy %[1]d", id) }
	mem, err := rec.ReadMemory(park)
	switch {
	case err != nil || !park.Bare() || f.Node != nil || f.Machine != nil:
		return text
	case f.VM == nil:
		return fmt.Sprintf("%s. To give it up, whose VM is not made yet, on %s: %s", text, park.Host, destroy(park.ID))
	case mem.ControlPlane || !madeAlone(*f.VM, rec.Run, mem.DiskSerial):
		return text
	case f.VM.Running:
		return fmt.Sprintf("%s. To give it up, switch VM %d off, and run the same command again", text, f.VM.ID)
	}
	return fmt.Sprintf("%s. To give it up, whose VM is off and has no disk but those that the run made, on %s: %s && %s", text, park.Host, destroy(f.VM.ID), destroy(park.ID))
}

// madeAlone says whether the VM is as the run made it: with its new system disk, and no other one.
func madeAlone(vm cluster.VM, run, serial string) bool {
	disks, err := vm.Disks()
	other := slices.ContainsFunc(disks, func(d cluster.Disk) bool {
		return !d.CDROM && (d.Owner != vm.ID || d.Key != "efidisk0" && (serial == "" || d.Option("serial") != serial))
	})
	return err == nil && !other && vm.MadeBy() == run && !vm.HA && vm.Config["vmstate"] == "" && vm.Config["parent"] == ""
}

func nothingToCancel(node string, f observe.Found) error {
	if f.Unfinished() {
		return fault.WithHint(fault.ParkedHalf.Refusedf("node %s: an upgrade in place of it is unfinished; its system disk was not replaced, so there is none to put back", node),
			"recast roll finishes the upgrade")
	}
	err := fault.NoWayBack.Refusedf("node %s: no replacement of it is unfinished, so there is nothing to cancel", node)
	if _, _, kept := f.LastKept(); kept {
		return fault.WithHint(err, "recast undo %s boots the system disk that it had before its last roll", node)
	}
	return fault.WithHint(err, "recast status says what is unfinished")
}
