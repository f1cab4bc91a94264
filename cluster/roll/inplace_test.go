package roll

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/rolling/rollingtest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestSettledIsRevoked: a sign that another system runs revokes that a node has settled; a failed read does not.
func TestSettledIsRevoked(t *testing.T) {
	t.Parallel()
	type testCase struct {
		just  bool // the wait has just ended
		lacks string
		err   error
		want  bool
	}
	must.Each(t, map[string]testCase{
		"it was just seen":     {just: true, lacks: "not asked", want: true},
		"nothing is missing":   {want: true},
		"something is missing": {lacks: "its Node is not Ready"},
		"no answer":            {err: errors.New("connection refused"), want: true},
		"its old system":       {err: fmt.Errorf("%w: v1 → v2", errRolledBack)},
		"another system":       {err: fmt.Errorf("%w: v1 → v2", errOtherSystem)},
	}, func(t *testing.T, c testCase) {
		n := (&Roller{}).node(rolling.Node{})
		n.settledAt = time.Now().Add(-rolling.JustNow)
		if c.just {
			n.settledAt = time.Now()
		}
		got, err := n.settled(t.Context(), func(context.Context) (string, error) { return c.lacks, c.err })
		must.Pass(t, err)
		must.Equal(t, "waits", c.want, got != "")
	})
}

// TestApplyHints: the hint that a machine waits for a configuration is given only if it has refused one.
func TestApplyHints(t *testing.T) {
	t.Parallel()
	type testCase struct {
		answer error
		waits  bool
	}
	must.Each(t, map[string]testCase{
		"refused": {fault.Refusedf("unknown keys"), true},
		"lost":    {fmt.Errorf("apply: %w", cluster.ErrLostAnswer), false},
	}, func(t *testing.T, c testCase) {
		s := rollingtest.NewScene()
		all(begun, saved, fails("apply", c.answer))(s)
		s.Ready()
		err := nodeOf(s).applyToBlank(t.Context(), cluster.MachineDisk{}, cluster.KubernetesImages{})
		if !errors.Is(err, c.answer) || strings.Contains(strings.Join(fault.Hints(err), "\n"), "waits for one in maintenance mode") != c.waits {
			t.Errorf("%v, %q", err, fault.Hints(err))
		}
	})
}

// countedTalos is a machine that runs one system, and counts how often it is asked.
type countedTalos struct {
	cluster.Talos
	machine cluster.Machine
	asked   int
}

func (c *countedTalos) ReadParts(_ context.Context, _ netip.Addr, parts cluster.MachineParts) (cluster.Machine, error) {
	c.asked++
	return clustertest.Parts(c.machine, parts), nil
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
	right := clustertest.InSync()
	old := right
	old.TalosVersion = "v1.0.0"
	type testCase struct {
		machine cluster.Machine
		pause   time.Duration
		want    bool
		asked   int
	}
	must.Bubbles(t, map[string]testCase{
		"it does":         {machine: right, want: true, asked: 1},
		"it did":          {machine: right, pause: rolling.JustNow, want: true, asked: 2},
		"it does not yet": {machine: old, asked: 2},
	}, func(t *testing.T, c testCase) {
		machine := &countedTalos{machine: c.machine}
		r := &Roller{Roll: &rolling.Roll{Talos: machine, Kube: unmarkedNode{}}, History: func(string) (cluster.LockedContent, bool) { return cluster.LockedContent{}, false }}
		n := &inPlace{node: r.node(rolling.Node{Plan: planning.NodePlan{Node: "wk1", UUID: "u1"}, Want: cluster.Wanted{Build: b}})}
		for range 2 {
			must.Equal(t, "runs the wanted build", c.want, must.Get(n.runsWanted(t.Context()))(t) != "")
			time.Sleep(c.pause)
		}
		must.Equal(t, "asked", c.asked, machine.asked)
	})
}

// TestISOIsNoBootEntry: a system that runs from an ISO has not booted the old disk, whatever entry it reports.
func TestISOIsNoBootEntry(t *testing.T) {
	t.Parallel()
	n := (&Roller{Roll: &rolling.Roll{Talos: isoTalos{}, Journal: keptMemory{}, Timing: cluster.Timing{Poll: time.Second}}}).node(rolling.Node{Plan: planning.NodePlan{Node: "wk1", UUID: "u"}})
	s := n.bootEntryStep(func(parking.Memory) string { return "talos-v1.14.1.efi" })
	must.Equal(t, "reason to skip", "", must.Get(s.Skip(t.Context()))(t))
}

// isoTalos is a machine that runs from its ISO.
type isoTalos struct{ cluster.Talos }

func (isoTalos) ReadParts(_ context.Context, _ netip.Addr, parts cluster.MachineParts) (cluster.Machine, error) {
	return clustertest.Parts(cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "u", Stage: "running"}, RunningSystem: cluster.RunningSystem{FromISO: true}}, parts), nil
}

// keptMemory is a journal that remembers a node.
type keptMemory struct{ rolling.Journal }

func (keptMemory) Get(_ string, v any) (bool, error) {
	*v.(*parking.Memory) = parking.Memory{}
	return true, nil
}
