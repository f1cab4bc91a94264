package parking

import (
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// Machine returns what is known of a machine that does not answer: the volumes on its persistent disks, and where
// its pools were.
func (m Memory) Machine() cluster.Machine {
	return cluster.Machine{
		Remembered: true, SystemDisk: cluster.GoneSystemDisk, Volumes: m.Volumes, PoolMembers: m.Pools,
		RunningSystem: cluster.RunningSystem{Extensions: m.Extensions},
	}
}

// BecameNode reports whether the system on the new disk may have become a node of the cluster, to which pods have
// written. It has not if it has no configuration, nor if Kubernetes knows only the boot from before. If Kubernetes
// can't be asked, the system has not become a node unless its node may take pods again.
func (r Record) BecameNode(mem Memory, node *cluster.KubeNode) bool {
	switch {
	case r.Stage == stageBlank:
		return false
	case node != nil:
		return mem.BootID == "" || node.BootID != mem.BootID
	}
	return r.Stage != StageConfigured
}

// SystemOn reports whether the VM has a system disk, and whether the replacement made that disk.
func (r Record) SystemOn(vm cluster.VM, mem Memory) (there, isNew bool) {
	for _, d := range r.Disks {
		if disk, err := cluster.ParseDisk(d.Key, vm.Config[d.Key]); d.System && err == nil && disk.Owner == vm.ID {
			return true, disk.Option("serial") == mem.DiskSerial
		}
	}
	return false, false
}

// SystemParked reports whether the old system disk is on the parking VM.
func (r Record) SystemParked(park cluster.VM) bool {
	return slices.ContainsFunc(r.Disks, func(d ParkedDisk) bool { return d.System && park.Config[d.ParkKey] != "" })
}

// Unseen says why the content of the new system disk is unknown; "" if it is known, if the node has taken no pods
// since before the disk was made, or if the replacement was cancelled, which checks this first.
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

// Stage is how far the system on the new disk of a replacement has come. It is recorded before each
// step that advances it, so it is never behind.
type Stage string

const (
	stageBlank      Stage = "blank"      // the system never got a configuration
	StageConfigured Stage = "configured" // the system may have got a configuration
	StageServes     Stage = "serves"     // its node may take pods again
)

// firstStage returns the stage of a replacement that begins; "" if no new disk is made.
func firstStage(s cluster.Strategy) Stage {
	if s.Replaces() {
		return stageBlank
	}
	return ""
}
