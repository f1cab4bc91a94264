package roll

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
)

// TestISOIsNoBootEntry: a system that runs from an ISO has not booted the old disk, whatever entry
// it reports.
func TestISOIsNoBootEntry(t *testing.T) {
	t.Parallel()
	n := (&Roller{Roll: &rolling.Roll{Talos: isoTalos{}, Journal: keptMemory{}, Timing: cluster.Timing{Poll: time.Second}}}).node(rolling.Node{Plan: planning.NodePlan{Node: "wk1", UUID: "u"}})
	reason, err := n.bootEntryStep(func(parking.Memory) string { return "talos-v1.14.1.efi" }).Skip(t.Context())
	if reason != "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
}

// isoTalos is a machine that runs from its ISO.
type isoTalos struct{ cluster.Talos }

func (isoTalos) Machine(context.Context, netip.Addr) (cluster.Machine, error) {
	return cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "u", Stage: "running"}, RunningSystem: cluster.RunningSystem{FromISO: true}}, nil
}

// keptMemory is a journal that remembers a node.
type keptMemory struct{ rolling.Journal }

func (keptMemory) Get(_ string, v any) (bool, error) {
	*v.(*parking.Memory) = parking.Memory{}
	return true, nil
}
