package cluster

import (
	"slices"
)

// Leavers are the strategies by which a system disk leaves its node. What only
// that disk has is asked for the same way, whichever of them it is.
var Leavers = []Strategy{
	Recreate,
	Reimage,
	Rollback,
	PutBack,
}

// GoneSystemDisk is the name of the system disk of a machine that does not answer:
// what it was called is not remembered.
const GoneSystemDisk = "the system disk"

// Pools are the members of the machine's pools, with its system disk under the
// name that it has once it does not answer.
func (m Machine) Pools() []PoolMember {
	out := slices.Clone(m.PoolMembers)
	for i := range out {
		out[i].Disks = slices.Clone(out[i].Disks)
		for j, disk := range out[i].Disks {
			if disk == m.SystemDisk {
				out[i].Disks[j] = GoneSystemDisk
			}
		}
	}
	return out
}

// HeldBy says whether the run has the node cordoned.
func (k KubeNode) HeldBy(run string) bool {
	return k.Unschedulable && k.Mark != nil && k.Mark.Run == run
}
