package roll

import (
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/hook"
	"github.com/recast-sh/recast/cluster/rehearse"
	"github.com/recast-sh/recast/cluster/rolling"
)

// Roller carries a plan out.
type Roller struct {
	*rolling.Roll
	Files     cluster.FileReader // of the machines
	Objects   cluster.ObjectJudge
	Commands  cluster.CommandRunner
	Rehearser *rehearse.Rehearser

	ParkingIDs   []cluster.VMID    // VMIDs that a parking VM may take, in order
	VMIDs        cluster.VMIDRange // of the recast.yaml, which the records name
	DrainForce   bool
	DrainDeletes bool                // pods that are refused until the end of a drain
	BootFailure  cluster.BootFailure // what to do with a node that does not come back from an in-place upgrade
	SnapshotDir  string              // where snapshots of etcd are saved
	History      cluster.History

	// MachineConfig returns a node's configuration where the user keeps it in
	// files; found is false where it has to be read from the node before it goes.
	MachineConfig func(node string) (config cluster.Secret, found bool, err error)
	// Hooked is told how each hook fared; nil: nobody is.
	Hooked func(hook.HookRun)

	parkingNumbers exchange.Numbers
}
