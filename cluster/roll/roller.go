package roll

import (
	"context"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/healing"
	"github.com/recast-sh/recast/cluster/hook"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rehearse"
	"github.com/recast-sh/recast/cluster/rolling"
)

// Roller carries out a plan.
type Roller struct {
	*rolling.Roll
	Files     cluster.FileReader // of the machines
	Objects   cluster.ObjectJudge
	Commands  cluster.CommandRunner
	Rehearser *rehearse.Rehearser

	ParkingIDs   []cluster.VMID    // VMIDs that a parking VM may take, in order
	VMIDs        cluster.VMIDRange // from recast.yaml; it is written into the records
	DrainForce   bool
	DrainDeletes bool                // deletes pods whose eviction is still refused when a drain times out
	BootFailure  cluster.BootFailure // what to do with a node that does not come back from an in-place upgrade
	SnapshotDir  string              // where snapshots of etcd are saved
	Rebuild      etcd.Source         // what a broken cluster begins with again
	History      cluster.History

	// MachineConfig returns a node's configuration if the user keeps it in files; found is false if
	// it must be read from the node before that goes down.
	MachineConfig func(ctx context.Context, node string) (config cluster.Secret, found bool, err error)
	// Hooked, if set, receives the result of each hook.
	Hooked func(hook.HookRun)

	parkingNumbers parking.Numbers
	leaving        healing.Leaving
}
