package planning

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/internal/fault"
)

// TestAPausedNodeProvesNoBuild: a node that is not rolled because it is paused does not prove that
// it runs the new build.
func TestAPausedNodeProvesNoBuild(t *testing.T) {
	t.Parallel()
	wanted, o := paused(map[string]string{"cp1": "x"})
	plan, err := New("c1", wanted, o, clustertest.Past, Policy{Canary: true})
	if err != nil || plan.Batches[0].Phase != Canary {
		t.Errorf("%+v, %v", plan.Batches, err)
	}
}

func TestNodesByLabel(t *testing.T) {
	t.Parallel()
	by := func(key, value string) cluster.Selector {
		return cluster.Selector{Text: key + "=" + value, Matches: func(l map[string]string) bool { return l[key] == value }}
	}
	for want, p := range map[string]Policy{
		"wk1 wk2": {Labels: by("kind", "wk")},
		"wk2":     {Labels: by("kind", "wk"), Exclude: []string{"wk1"}},
		"cp1":     {Labels: by("kind", "cp"), Only: []string{"cp1", "wk1"}},
		"":        {Labels: by("kind", "gpu")},
		" ":       {Labels: by("kind", "wk"), Only: []string{"cp1"}},
	} {
		wanted, o := paused(nil)
		plan, err := New("c1", wanted, o, clustertest.Past, p)
		var got []string
		for _, n := range plan.Nodes {
			got = append(got, n.Node)
		}
		if strings.TrimSpace(want) != strings.Join(got, " ") || (err != nil) != (len(got) == 0) || err != nil && fault.KindOf(err) != fault.Config {
			t.Errorf("%q, want %q; %v", got, want, err)
		}
	}
}

func TestPausedNodesStay(t *testing.T) {
	t.Parallel()
	wanted, o := paused(map[string]string{"wk1": "a disk is being replaced"})
	plan, err := New("c1", wanted, o, clustertest.Past, Policy{Canary: true, Exclude: []string{"cp1"}})
	if err != nil {
		t.Fatal(err)
	}
	if work := plan.Work(); len(work) != 1 || work[0].Node != "wk2" || len(plan.Batches) != 1 {
		t.Errorf("%+v", work)
	}
	for _, n := range plan.Nodes {
		if n.Node == "wk1" && (n.Why != "paused: a disk is being replaced" || !n.Drift.Stale || len(n.Slots) > 0) {
			t.Errorf("%+v", n)
		}
	}
}

// TestControlledNodesAreRefused: a controller may replace a node of its own, with its disks, while recast rolls it.
func TestControlledNodesAreRefused(t *testing.T) {
	t.Parallel()
	for mark, want := range map[string]string{
		"cluster.x-k8s.io/machine": "wk1: it is of Cluster API (cluster.x-k8s.io/machine: x), which creates and deletes its VM: its TalosControlPlane or MachineDeployment rolls it: change the template there, and take it out of recast.yaml; --exclude wk1 rolls the others",
		"karpenter.sh/nodepool":    "wk1: it is of Karpenter (karpenter.sh/nodepool: x), which creates and deletes its VM: its NodePool replaces it: change the NodeClass there, and take it out of recast.yaml; --exclude wk1 rolls the others",
	} {
		wanted, o := paused(nil)
		o.Found[1].Node.Metadata.Annotations = map[string]string{mark: "x"}
		plan, err := New("c1", wanted, o, clustertest.Past, Policy{Exclude: []string{"cp1"}})
		if got := strings.Join(plan.Refused(), "\n"); err != nil || got != want {
			t.Errorf("%q, %v", got, err)
		}
		plan, err = New("c1", wanted, o, clustertest.Past, Policy{Exclude: []string{"cp1", "wk1"}})
		if work := plan.Work(); err != nil || len(work) != 1 || work[0].Node != "wk2" || len(plan.Refused()) > 0 {
			t.Errorf("without it: %q, %v", plan.Refused(), err)
		}
	}
}

// paused is the world with marks on its Nodes, by name.
func paused(marks map[string]string) ([]cluster.Wanted, observe.Observation) {
	wanted, o := observetest.World()
	for i := range o.Found {
		name := o.Found[i].Name
		m := *o.Found[i].Machine
		m.Schematic = cluster.SchematicEntry{ID: "id-old", YAML: "recast.lock=" + clustertest.OldHash}
		o.Found[i].Machine = &m
		o.Found[i].Node = &cluster.KubeNode{
			Name: name, Ready: true, ControlPlane: name == "cp1", Pause: marks[name], KubeletVersion: "v1.35.4",
			Metadata: cluster.NodeMetadata{Labels: map[string]string{"name": name, "kind": name[:2]}},
		}
	}
	return wanted, o
}
