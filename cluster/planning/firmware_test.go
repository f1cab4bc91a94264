package planning

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

func TestOneNodeOfEachImageBootsThroughTheFirmware(t *testing.T) {
	t.Parallel()
	node := staleOf
	cp, worker := cluster.ControlPlane, cluster.Worker
	resumed, own := node("wk1", worker, "a", cluster.InPlace), node("wk1", worker, "a", cluster.InPlace)
	resumed.Resume, resumed.Run, own.OwnPod = true, "r1", true
	tidies := node("wk1", worker, "a", cluster.InPlace, "install-image", "config", "vm")
	for name, tc := range map[string]struct {
		policy Policy
		nodes  []NodePlan
		want   string // in the order in which they go: phase/node, and * for the firmware
	}{
		"canary": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true},
			[]NodePlan{node("cp1", cp, "a", cluster.InPlace), node("wk1", worker, "a", cluster.InPlace), node("wk2", worker, "a", cluster.InPlace)},
			"canary/wk1* control-planes/cp1 workers/wk2",
		},
		"without another canary": {
			Policy{Reboot: cluster.FirmwareOnce},
			[]NodePlan{node("cp1", cp, "a", cluster.InPlace), node("wk1", worker, "a", cluster.InPlace), node("wk2", worker, "a", cluster.InPlace)},
			"canary/wk1* control-planes/cp1 workers/wk2",
		},
		"the named one": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true, CanaryNode: "wk2"},
			[]NodePlan{node("wk1", worker, "a", cluster.InPlace), node("wk2", worker, "a", cluster.InPlace)},
			"canary/wk2* workers/wk1",
		},
		"two images": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true},
			[]NodePlan{node("cp1", cp, "a", cluster.InPlace), node("cp2", cp, "a", cluster.InPlace), node("wk1", worker, "b", cluster.InPlace), node("wk2", worker, "b", cluster.InPlace)},
			"canary/cp1* canary/wk1* control-planes/cp2 workers/wk2",
		},
		"one node of an image": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true},
			[]NodePlan{node("cp1", cp, "a", cluster.InPlace), node("wk1", worker, "b", cluster.Recreate), node("wk2", worker, "b", cluster.Recreate)},
			"canary/wk1 control-planes/cp1* workers/wk2",
		},
		"not where recast runs": {
			Policy{Reboot: cluster.FirmwareOnce},
			[]NodePlan{own, node("wk2", worker, "a", cluster.InPlace)},
			"canary/wk2* workers/wk1",
		},
		"what an earlier run left does not count": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true},
			[]NodePlan{resumed, node("wk2", worker, "a", cluster.InPlace), node("wk3", worker, "a", cluster.InPlace)},
			"unfinished/wk1* canary/wk2* workers/wk3",
		},
		"not one that runs it and only tidies, whatever else differs": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true},
			[]NodePlan{tidies, node("wk2", worker, "a", cluster.InPlace), node("wk3", worker, "a", cluster.InPlace)},
			"canary/wk2* workers/wk1 workers/wk3",
		},
		"always": {
			Policy{Reboot: cluster.ByFirmware},
			[]NodePlan{node("wk1", worker, "a", cluster.InPlace), node("wk2", worker, "a", cluster.InPlace)},
			"workers/wk1* workers/wk2*",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Plan{Nodes: tc.nodes, MaxUnavailable: 2}
			p.Order(tc.policy)
			var got []string
			for _, n := range p.Nodes {
				what := string(n.Phase) + "/" + n.Node
				if n.Reboot == cluster.ByFirmware {
					what += "*"
				}
				got = append(got, what)
				if said := strings.Contains(strings.Join(n.Notes, "; "), "through the firmware"); said != (n.Reboot == cluster.ByFirmware) {
					t.Errorf("%s: the plan says %q", n.Node, n.Notes)
				}
			}
			if got := strings.Join(got, " "); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// staleOf is a node that a strategy brings to a build.
func staleOf(name, role, build string, s cluster.Strategy, codes ...string) NodePlan {
	reasons := []cluster.Reason{{Text: "stale"}}
	if len(codes) > 0 {
		reasons = nil
	}
	for _, code := range codes {
		reasons = append(reasons, cluster.Reason{Code: code})
	}
	return NodePlan{
		Node: name, Role: role, Strategy: s, Host: "pve1", Found: observe.Found{Machine: &cluster.Machine{}},
		Wanted: cluster.Wanted{Name: name, Build: cluster.Build{ID: build}}, Drift: observe.Drift{Reasons: reasons},
	}
}
