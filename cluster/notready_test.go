package cluster

import (
	"testing"
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
