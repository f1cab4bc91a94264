package planning

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// TestPlanRefusesWhileNodesAreDown: the plan refuses what the gate would refuse, except what the
// plan itself brings back first.
func TestPlanRefusesWhileNodesAreDown(t *testing.T) {
	t.Parallel()
	node := func(name string, s cluster.Strategy) NodePlan {
		return NodePlan{Node: name, Role: cluster.Worker, Strategy: s}
	}
	resumed := node("wk4", cluster.Recreate)
	resumed.Resume = true
	o := observe.Observation{Nodes: []cluster.KubeNode{{Name: "wk1", Ready: true}, {Name: "wk3"}, {Name: "wk2"}, {Name: "gpu1"}}}
	for name, tc := range map[string]struct {
		nodes []NodePlan
		want  map[string]string // the nodes that are refused, and who is down
		warn  int
	}{
		"two are down":                     {[]NodePlan{node("wk1", cluster.Recreate)}, map[string]string{"wk1": "wk2, wk3"}, 1},
		"they come first":                  {[]NodePlan{node("wk2", cluster.Recreate), node("wk3", cluster.Reimage), node("wk1", cluster.InPlace)}, map[string]string{"wk2": "wk3"}, 1},
		"one that is finished is out":      {[]NodePlan{resumed}, nil, 1},
		"to give up takes none out":        {[]NodePlan{node("wk1", cluster.PutBack)}, nil, 1},
		"a reset machine takes none out":   {[]NodePlan{node("wk1", cluster.InstallReset)}, nil, 1},
		"where nothing is to do, all rest": {[]NodePlan{node("wk1", "")}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Plan{Nodes: slices.Clone(tc.nodes), Heed: Heed{Known: []string{"wk1", "wk2", "wk3", "wk4"}}}
			p.AwaitOthers(o)
			var got map[string]string
			for _, n := range p.Nodes {
				for _, r := range n.Refused {
					down, _, _ := strings.Cut(strings.TrimPrefix(r, OthersDown), ": ")
					if got == nil {
						got = map[string]string{}
					}
					got[n.Node] = down
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || len(p.Warn) != tc.warn {
				t.Errorf("refused (-want +got):\n%s\nwarnings %q", diff, p.Warn)
			}
		})
	}
}
