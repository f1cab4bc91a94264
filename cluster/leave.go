package cluster

import (
	"fmt"
	"slices"
)

// leavers are the strategies by which a system disk leaves its node. What only
// that disk has is asked for the same way, whichever of them it is.
var leavers = []Strategy{
	Recreate,
	Reimage,
	Rollback,
	PutBack,
}

// askLosses asks for the data of the system disk that is about to leave the
// node, if one is: the plan shows what acceptLoss names and refuses the rest.
func (n *NodePlan) askLosses() {
	c, leaves := leaving(n.Strategy, n.wanted, n.found)
	if !leaves {
		return
	}
	for _, reason := range texts(c.irreplaceable()) {
		if n.found.Open() && n.Strategy != PutBack && n.Strategy != Rollback {
			reason += fmt.Sprintf("; recast recover %s gives the replacement up instead", n.Node)
		}
		n.Refused = append(n.Refused, reason)
	}
	n.WillLose = append(n.WillLose, c.accepted()...)
}

// leaving is the node with the system disk that a strategy takes away from it as
// things are now; leaves is false where none is there that could leave. What is
// known of a machine that does not answer is what was remembered of it, so that
// whatever is not provably on another disk counts.
func leaving(s Strategy, w Wanted, f Found) (c candidate, leaves bool) {
	if !slices.Contains(leavers, s) || f.VM == nil {
		return candidate{}, false
	}
	c = candidate{Wanted: w, vm: *f.VM, found: f}
	if f.Machine != nil {
		c.m = *f.Machine
	}
	if !f.Open() {
		return c, f.Machine != nil // one that could not be read is refused for that
	}
	rec := f.Parking.Record
	mem, err := rec.memory(f.Parking.VM)
	if err != nil {
		return candidate{}, false // refused for that
	}
	if c.m.SystemDisk == "" {
		c.m = mem.machine()
	}
	switch there, isNew := rec.systemOn(*f.VM, mem); {
	case !there:
		return candidate{}, false
	case s != PutBack:
		return c, !isNew && !rec.systemParked(f.Parking.VM)
	case !isNew || !rec.becameNode(mem, f):
		return candidate{}, false
	}
	if why := rec.unseen(f); why != "" {
		c.unseen = append(c.unseen, loss{name: "unread/" + rec.Run, what: "data that can't be told (" + why + ")"})
	}
	return c, true
}

// goneSystemDisk is the name of the system disk of a machine that does not answer:
// what it was called is not remembered.
const goneSystemDisk = "the system disk"

// machine is what is known of a machine that does not answer: which volumes were
// on its persistent disks, and where its pools were.
func (m memory) machine() Machine {
	return Machine{Remembered: true, SystemDisk: goneSystemDisk, Volumes: m.Volumes, PoolMembers: m.Pools}
}

// pools are the members of the machine's pools, with its system disk under the
// name that it has once it does not answer.
func (m Machine) pools() []PoolMember {
	out := slices.Clone(m.PoolMembers)
	for i := range out {
		out[i].Disks = slices.Clone(out[i].Disks)
		for j, disk := range out[i].Disks {
			if disk == m.SystemDisk {
				out[i].Disks[j] = goneSystemDisk
			}
		}
	}
	return out
}

// systemOn says whether the VM has a system disk, and whether that is the one
// which the replacement made.
func (r Record) systemOn(vm VM, mem memory) (there, isNew bool) {
	for _, d := range r.Disks {
		if disk, err := ParseDisk(d.Key, vm.Config[d.Key]); d.System && err == nil && disk.Owner == vm.ID {
			return true, disk.Option("serial") == mem.DiskSerial
		}
	}
	return false, false
}

// systemParked says whether the old system disk is on the parking VM.
func (r Record) systemParked(park VM) bool {
	return slices.ContainsFunc(r.Disks, func(d ParkedDisk) bool { return d.System && park.Config[d.ParkKey] != "" })
}

// becameNode says whether the system on the new disk may have become a node of
// the cluster, to which pods have written. It has not without a configuration,
// nor while Kubernetes has heard of no other boot than the one before; and where
// Kubernetes can't be asked, not as long as the node was not given back.
func (r Record) becameNode(mem memory, f Found) bool {
	switch {
	case r.Stage == stageBlank:
		return false
	case f.Node != nil:
		return mem.BootID == "" || f.Node.BootID != mem.BootID
	}
	return r.Stage != stageConfigured
}

// unseen says why what is on the new system disk can't be told; "" where it can,
// or where the node takes no pods since before the disk was made, or where that
// was asked when the replacement was given up.
func (r Record) unseen(f Found) string {
	switch {
	case r.PutBack, f.Node != nil && f.Node.heldBy(r.Run):
		return ""
	case f.Node == nil:
		return "Kubernetes does not tell what is bound to the node"
	case f.Machine == nil:
		return "its machine does not answer"
	}
	return ""
}

// heldBy says whether the run has the node cordoned.
func (k KubeNode) heldBy(run string) bool {
	return k.Unschedulable && k.Mark != nil && k.Mark.Run == run
}

// Stage is how far the system on the new disk of a replacement has come. It is
// written down before each step that it is about, so that it is never behind.
type Stage string

// An older recast has written none: such a system may have come to anything.
const (
	stageBlank      Stage = "blank"      // it never got a configuration
	stageConfigured Stage = "configured" // it may have got one
	stageServes     Stage = "serves"     // its node may take pods again
)

// firstStage is that of a replacement which begins; "" where no new disk is made.
func (s Strategy) firstStage() Stage {
	if s == Recreate || s == Reimage {
		return stageBlank
	}
	return ""
}

// accepted is the data of the system disk that may be lost, for the plan.
func (c candidate) accepted() []string {
	var out []string
	lost, _ := c.losses()
	for _, l := range lost {
		if slices.Contains(c.AcceptLoss, l.name) {
			out = append(out, l.what+" on the system disk will be lost")
		}
	}
	return out
}
