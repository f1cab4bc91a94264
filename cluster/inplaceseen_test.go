package cluster

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// countedTalos is a machine that runs one system, and counts how often it is asked.
type countedTalos struct {
	Talos
	machine Machine
	asked   int
}

func (c *countedTalos) Booted(context.Context, netip.Addr) (Machine, error) {
	c.asked++
	return c.machine, nil
}

// markedNode is a Node without a mark.
type markedNode struct{ Kube }

func (markedNode) Node(context.Context, string) (KubeNode, error) { return KubeNode{Name: "wk1"}, nil }

// TestRunsWantedIsSeenOnce: that a machine runs what is wanted is not looked at
// twice in a row; that it does not is, for the next look may be after a change.
func TestRunsWantedIsSeenOnce(t *testing.T) {
	t.Parallel()
	b := wantedBuild()
	right := inSync()
	old := right
	old.TalosVersion = "v1.0.0"
	for name, c := range map[string]struct {
		machine Machine
		pause   time.Duration
		want    bool
		asked   int
	}{
		"it does":         {machine: right, want: true, asked: 1},
		"it did":          {machine: right, pause: justNow, want: true, asked: 2},
		"it does not yet": {machine: old, asked: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				machine := &countedTalos{machine: c.machine}
				n := &nodeRoll{
					Roller: &Roller{Talos: machine, Kube: markedNode{}, History: func(string) ([]LockedExtension, bool) { return nil, false }},
					plan:   NodePlan{Node: "wk1", UUID: "u1"}, want: Wanted{Build: b},
				}
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
