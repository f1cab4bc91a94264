package parking

import (
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// Machine is what is known of a machine that does not answer: which volumes were
// on its persistent disks, and where its pools were.
func (m Memory) Machine() cluster.Machine {
	return cluster.Machine{Remembered: true, SystemDisk: cluster.GoneSystemDisk, Volumes: m.Volumes, PoolMembers: m.Pools}
}

// BecameNode says whether the system on the new disk may have become a node of
// the cluster, to which pods have written. It has not without a configuration,
// nor while Kubernetes has heard of no other boot than the one before; and where
// Kubernetes can't be asked, not as long as the node was not given back.
func (r Record) BecameNode(mem Memory, node *cluster.KubeNode) bool {
	switch {
	case r.Stage == stageBlank:
		return false
	case node != nil:
		return mem.BootID == "" || node.BootID != mem.BootID
	}
	return r.Stage != StageConfigured
}

// SystemOn says whether the VM has a system disk, and whether that is the one
// which the replacement made.
func (r Record) SystemOn(vm cluster.VM, mem Memory) (there, isNew bool) {
	for _, d := range r.Disks {
		if disk, err := cluster.ParseDisk(d.Key, vm.Config[d.Key]); d.System && err == nil && disk.Owner == vm.ID {
			return true, disk.Option("serial") == mem.DiskSerial
		}
	}
	return false, false
}

// SystemParked says whether the old system disk is on the parking VM.
func (r Record) SystemParked(park cluster.VM) bool {
	return slices.ContainsFunc(r.Disks, func(d ParkedDisk) bool { return d.System && park.Config[d.ParkKey] != "" })
}

// Unseen says why what is on the new system disk can't be told; "" where it can,
// or where the node takes no pods since before the disk was made, or where that
// was asked when the replacement was given up.
func (r Record) Unseen(node *cluster.KubeNode, machine *cluster.Machine) string {
	switch {
	case r.PutBack, node != nil && node.HeldBy(r.Run):
		return ""
	case node == nil:
		return "Kubernetes does not tell what is bound to the node"
	case machine == nil:
		return "its machine does not answer"
	}
	return ""
}

// Stage is how far the system on the new disk of a replacement has come. It is
// written down before each step that it is about, so that it is never behind.
type Stage string

// An older recast has written none: such a system may have come to anything.
const (
	stageBlank      Stage = "blank"      // it never got a configuration
	StageConfigured Stage = "configured" // it may have got one
	StageServes     Stage = "serves"     // its node may take pods again
)

// firstStage is that of a replacement which begins; "" where no new disk is made.
func firstStage(s cluster.Strategy) Stage {
	if s == cluster.Recreate || s == cluster.Reimage {
		return stageBlank
	}
	return ""
}
