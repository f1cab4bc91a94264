package planning

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
)

func TestWhichNodesAreWaitedFor(t *testing.T) {
	t.Parallel()
	h := Heed{Known: []string{"cp1", "cp2", "wk1", "wk2"}, Ignore: []string{"wk2", "cp2"}}
	for name, tc := range map[string]struct {
		heed               Heed
		node               cluster.KubeNode
		worker, forControl bool // whether a worker, a control plane has to stay in
	}{
		"Ready":                      {h, cluster.KubeNode{Name: "wk1", Ready: true}, false, false},
		"ours":                       {h, cluster.KubeNode{Name: "wk1"}, true, true},
		"cordoned":                   {h, cluster.KubeNode{Name: "wk1", Unschedulable: true}, false, false},
		"cordoned by recast":         {h, cluster.KubeNode{Name: "wk1", Unschedulable: true, Mark: &cluster.Mark{Run: "r"}}, true, true},
		"cordoned by both":           {h, cluster.KubeNode{Name: "wk1", Unschedulable: true, Mark: &cluster.Mark{Run: "r", Foreign: true}}, true, true},
		"foreign":                    {h, cluster.KubeNode{Name: "gpu1"}, false, false},
		"ignored":                    {h, cluster.KubeNode{Name: "wk2"}, false, false},
		"control plane":              {h, cluster.KubeNode{Name: "cp1", ControlPlane: true}, true, true},
		"control plane, ignored":     {h, cluster.KubeNode{Name: "cp2", ControlPlane: true}, false, true},
		"control plane, cordoned":    {h, cluster.KubeNode{Name: "cp1", ControlPlane: true, Unschedulable: true}, false, true},
		"control plane, foreign":     {h, cluster.KubeNode{Name: "cp9", ControlPlane: true}, false, true},
		"no known nodes":             {Heed{}, cluster.KubeNode{Name: "gpu1"}, true, true},
		"itself, which is not Ready": {h, cluster.KubeNode{Name: "self"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stays := func(role string) bool {
				return len(tc.heed.Down([]cluster.KubeNode{tc.node}, role, func(name string) bool { return name == "self" })) > 0
			}
			if got := [2]bool{stays(cluster.Worker), stays(cluster.ControlPlane)}; got != [2]bool{tc.worker, tc.forControl} {
				t.Errorf("a worker and a control plane stay in: %v", got)
			}
		})
	}
}
