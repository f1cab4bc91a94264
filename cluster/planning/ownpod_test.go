package planning

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// inPlan names the nodes of a plan in their order.
func inPlan(p Plan) string {
	var names []string
	for _, n := range p.Nodes {
		names = append(names, n.Node)
	}
	return strings.Join(names, " ")
}

// TestOwnPodGoesLast: the node that recast runs on is the last of its kind, and nothing goes beside it.
func TestOwnPodGoesLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		own    string
		policy Policy
		want   string
		beside bool
	}{
		"no pod of it":         {want: "cp1 cp2 wk1 wk2", beside: true},
		"on a worker":          {own: "wk1", want: "cp1 cp2 wk2 wk1"},
		"on a control plane":   {own: "cp1", want: "cp2 cp1 wk1 wk2"},
		"workers first":        {own: "wk1", policy: Policy{WorkersFirst: true}, want: "wk2 wk1 cp1 cp2"},
		"another canary":       {own: "wk1", policy: Policy{Canary: true}, want: "wk2 cp1 cp2 wk1"},
		"it is the canary":     {own: "wk1", policy: Policy{Canary: true, CanaryNode: "wk1"}, want: "wk1 cp1 cp2 wk2"},
		"on none of the plan":  {own: "gpu1", want: "cp1 cp2 wk1 wk2", beside: true},
		"another one's canary": {own: "cp1", policy: Policy{Canary: true}, want: "wk1 cp2 cp1 wk2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := slices.Concat(onHosts("a b", cluster.ControlPlane, time.Minute), onHosts("a b", cluster.Worker, time.Minute))
			for i, name := range []string{"cp1", "cp2", "wk1", "wk2"} {
				nodes[i].Node = name
				nodes[i].Drift = observe.Drift{Reasons: []cluster.Reason{{Code: "talos-version"}}}
			}
			p := Plan{Nodes: nodes, WorkersBeside: true, MaxUnavailable: 2, ControlPlanes: make([]cluster.Endpoint, 3)}
			heedOwnPod(&p, observe.Observation{OwnPod: observe.OwnPod{Node: c.own}})
			p.Order(c.policy)
			p.Arrange()
			if got := inPlan(p); got != c.want {
				t.Errorf("order %s, want %s", got, c.want)
			}
			if got := p.Batches[len(p.Batches)-1].Beside; got != c.beside {
				t.Errorf("batches %+v; beside: want %t", p.Batches, c.beside)
			}
			for _, n := range p.Nodes {
				if said := strings.Contains(strings.Join(n.Notes, "; "), "recast runs on it as a pod"); said != (n.Node == c.own) || n.OwnPod != said || len(n.Refused) > 0 {
					t.Errorf("%s: notes %q, refused %q", n.Node, n.Notes, n.Refused)
				}
			}
		})
	}
}

func TestOwnPodRefuses(t *testing.T) {
	t.Parallel()
	unknown := observe.OwnPod{Err: errors.New("pods is forbidden")}
	plane := func(edit func(*NodePlan)) NodePlan {
		n := NodePlan{Node: "cp1", Role: cluster.ControlPlane, Strategy: cluster.Recreate}
		if edit != nil {
			edit(&n)
		}
		return n
	}
	for name, c := range map[string]struct {
		node   NodePlan
		planes int
		own    observe.OwnPod
		dark   error
		want   string // a part of the refusal; "": none
	}{
		"a single control plane":           {plane(nil), 1, observe.OwnPod{Node: "wk1"}, nil, "recast runs as a pod of this cluster, on wk1"},
		"the one that it is on":            {plane(nil), 1, observe.OwnPod{Node: "cp1"}, nil, "recast runs as a pod of this cluster, on cp1"},
		"one of two":                       {plane(nil), 2, observe.OwnPod{Node: "wk1"}, nil, "without it the Kubernetes API is down"},
		"one of three":                     {plane(nil), 3, observe.OwnPod{Node: "wk1"}, nil, ""},
		"not of this cluster":              {plane(nil), 1, observe.OwnPod{}, nil, ""},
		"up to date":                       {plane(func(n *NodePlan) { n.Strategy = "" }), 1, observe.OwnPod{Node: "wk1"}, nil, ""},
		"its VM changes while it runs":     {plane(func(n *NodePlan) { n.Strategy = cluster.Reshape }), 1, observe.OwnPod{Node: "wk1"}, nil, ""},
		"it is made":                       {plane(func(n *NodePlan) { n.Strategy = cluster.Create }), 1, observe.OwnPod{Node: "wk1"}, nil, ""},
		"it is rolled back":                {plane(func(n *NodePlan) { n.Strategy = cluster.Rollback }), 1, observe.OwnPod{Node: "wk1"}, nil, "without it"},
		"it was begun, and its API is up":  {plane(func(n *NodePlan) { n.Resume = true }), 1, observe.OwnPod{Node: "wk1"}, nil, "without it"},
		"a worker":                         {plane(func(n *NodePlan) { n.Role = cluster.Worker }), 1, observe.OwnPod{Node: "wk1"}, nil, ""},
		"not known":                        {plane(nil), 3, unknown, nil, "is not known: pods is forbidden: let the kubeconfig's user get that pod"},
		"not known, and begun":             {plane(func(n *NodePlan) { n.Resume = true }), 3, unknown, nil, "is not known"},
		"not known, as a node is out":      {plane(func(n *NodePlan) { n.Resume = true }), 1, unknown, errors.New("no answer"), ""},
		"not known, of a broken cluster":   {plane(func(n *NodePlan) { n.Strategy, n.Rebuild = cluster.Remove, "sum" }), 1, unknown, nil, "is not known"},
		"not known, and nothing goes":      {plane(func(n *NodePlan) { n.Strategy = "" }), 3, unknown, nil, ""},
		"not known, and it gets its files": {plane(func(n *NodePlan) { n.Strategy = cluster.InstallReset }), 3, unknown, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Plan{Nodes: []NodePlan{c.node}, ControlPlanes: make([]cluster.Endpoint, c.planes)}
			heedOwnPod(&p, observe.Observation{OwnPod: c.own, Dark: c.dark})
			refused := strings.Join(p.Nodes[0].Refused, "; ")
			if (refused != "") != (c.want != "") || !strings.Contains(refused, c.want) {
				t.Errorf("refused %q, want %q", refused, c.want)
			}
		})
	}
}

// TestSavedPlanOfAnotherPod: a saved plan keeps its order, wherever recast runs when it is carried out.
func TestSavedPlanOfAnotherPod(t *testing.T) {
	t.Parallel()
	on := func(node string) Plan {
		return sealed(t, func(_ []cluster.Wanted, o *observe.Observation) { o.OwnPod.Node = node }, Policy{})
	}
	saved := on("wk1")
	if got := inPlan(saved); got != "wk2 wk1" {
		t.Fatalf("order %s", got)
	}
	for _, node := range []string{"wk1", "wk2", ""} {
		got, err := on(node).Follow(saved, false)
		if err != nil {
			t.Fatalf("on %q: %v", node, err)
		}
		if inPlan(got) != inPlan(saved) || got.ID != saved.ID {
			t.Errorf("on %q: order %s, ID %s; want %s, %s", node, inPlan(got), got.ID, inPlan(saved), saved.ID)
		}
		for _, n := range got.Nodes {
			if n.OwnPod != (n.Node == node) {
				t.Errorf("on %q: %s is its own: %t", node, n.Node, n.OwnPod)
			}
		}
		if diff := cmp.Diff(saved.Batches, got.Batches); diff != "" {
			t.Errorf("on %q: batches (-saved +followed):\n%s", node, diff)
		}
	}
}
