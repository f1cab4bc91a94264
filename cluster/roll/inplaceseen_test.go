package roll

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
)

// countedTalos is a machine that runs one system, and counts how often it is asked.
type countedTalos struct {
	cluster.Talos
	machine cluster.BootedMachine
	asked   int
}

func (c *countedTalos) Booted(context.Context, netip.Addr) (cluster.BootedMachine, error) {
	c.asked++
	return c.machine, nil
}

// unmarkedNode is a Node without a mark.
type unmarkedNode struct{ cluster.Kube }

func (unmarkedNode) Node(context.Context, string) (cluster.KubeNode, error) {
	return cluster.KubeNode{Name: "wk1"}, nil
}

// TestRunsWantedIsSeenOnce: a positive result is reused for a moment; a negative one is not,
// because the next check may follow a change.
func TestRunsWantedIsSeenOnce(t *testing.T) {
	t.Parallel()
	b := clustertest.WantedBuild()
	right := clustertest.InSync().Booted()
	old := right
	old.TalosVersion = "v1.0.0"
	for name, c := range map[string]struct {
		machine cluster.BootedMachine
		pause   time.Duration
		want    bool
		asked   int
	}{
		"it does":         {machine: right, want: true, asked: 1},
		"it did":          {machine: right, pause: rolling.JustNow, want: true, asked: 2},
		"it does not yet": {machine: old, asked: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				machine := &countedTalos{machine: c.machine}
				r := &Roller{Roll: &rolling.Roll{Talos: machine, Kube: unmarkedNode{}}, History: func(string) (cluster.LockedContent, bool) { return cluster.LockedContent{}, false }}
				n := &inPlace{node: r.node(rolling.Node{Plan: planning.NodePlan{Node: "wk1", UUID: "u1"}, Want: cluster.Wanted{Build: b}})}
				for range 2 {
					if reason, err := n.runsWanted(t.Context()); err != nil || (reason != "") != c.want {
						t.Errorf("%q, %v", reason, err)
					}
					time.Sleep(c.pause)
				}
				if machine.asked != c.asked {
					t.Errorf("asked %d times, want %d", machine.asked, c.asked)
				}
			})
		})
	}
}
