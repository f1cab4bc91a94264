package cluster

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWhichNodesAreWaitedFor(t *testing.T) {
	t.Parallel()
	h := Heed{Known: []string{"cp1", "cp2", "wk1", "wk2"}, Ignore: []string{"wk2", "cp2"}}
	for name, tc := range map[string]struct {
		heed               Heed
		node               KubeNode
		worker, forControl bool // whether a worker, a control plane has to stay in
	}{
		"Ready":                      {h, KubeNode{Name: "wk1", Ready: true}, false, false},
		"ours":                       {h, KubeNode{Name: "wk1"}, true, true},
		"cordoned":                   {h, KubeNode{Name: "wk1", Unschedulable: true}, false, false},
		"cordoned by recast":         {h, KubeNode{Name: "wk1", Unschedulable: true, Mark: &Mark{Run: "r"}}, true, true},
		"cordoned by both":           {h, KubeNode{Name: "wk1", Unschedulable: true, Mark: &Mark{Run: "r", Foreign: true}}, true, true},
		"foreign":                    {h, KubeNode{Name: "gpu1"}, false, false},
		"ignored":                    {h, KubeNode{Name: "wk2"}, false, false},
		"control plane":              {h, KubeNode{Name: "cp1", ControlPlane: true}, true, true},
		"control plane, ignored":     {h, KubeNode{Name: "cp2", ControlPlane: true}, false, true},
		"control plane, cordoned":    {h, KubeNode{Name: "cp1", ControlPlane: true, Unschedulable: true}, false, true},
		"control plane, foreign":     {h, KubeNode{Name: "cp9", ControlPlane: true}, false, true},
		"nobody says what is ours":   {Heed{}, KubeNode{Name: "gpu1"}, true, true},
		"itself, which is not Ready": {h, KubeNode{Name: "self"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stays := func(role string) bool {
				return len(tc.heed.Down([]KubeNode{tc.node}, role, func(name string) bool { return name == "self" })) > 0
			}
			if got := [2]bool{stays(Worker), stays(ControlPlane)}; got != [2]bool{tc.worker, tc.forControl} {
				t.Errorf("a worker and a control plane stay in: %v", got)
			}
		})
	}
}

// TestThePlanKnowsWhoIsDown: what the gate would refuse, the plan refuses, but
// for what it brings back itself before.
func TestThePlanKnowsWhoIsDown(t *testing.T) {
	t.Parallel()
	node := func(name string, s Strategy) NodePlan { return NodePlan{Node: name, Role: Worker, Strategy: s} }
	resumed := node("wk4", Recreate)
	resumed.Resume = true
	o := Observation{Nodes: []KubeNode{{Name: "wk1", Ready: true}, {Name: "wk3"}, {Name: "wk2"}, {Name: "gpu1"}}}
	for name, tc := range map[string]struct {
		nodes []NodePlan
		want  map[string]string // the nodes that are refused, and who is down
		warn  int
	}{
		"two are down":                     {[]NodePlan{node("wk1", Recreate)}, map[string]string{"wk1": "wk2, wk3"}, 1},
		"they come first":                  {[]NodePlan{node("wk2", Recreate), node("wk3", Reimage), node("wk1", InPlace)}, map[string]string{"wk2": "wk3"}, 1},
		"one that is finished is out":      {[]NodePlan{resumed}, nil, 1},
		"to give up takes none out":        {[]NodePlan{node("wk1", PutBack)}, nil, 1},
		"a reset machine takes none out":   {[]NodePlan{node("wk1", Configure)}, nil, 1},
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
