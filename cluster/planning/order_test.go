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

// onHosts is a plan of nodes by their hosts: "a a b" has n1 and n2 on a. A host with a suffix,
// as in "a+9200", has its node's disks owned by that VM.
func onHosts(hosts string, role string, outage time.Duration) []NodePlan {
	var nodes []NodePlan
	for i, host := range strings.Fields(hosts) {
		host, holder, _ := strings.Cut(host, "+")
		n := NodePlan{Node: "n" + string(rune('1'+i)), Role: role, Strategy: cluster.Recreate, Host: host, OutageSeconds: int(outage.Seconds())}
		if holder != "" {
			n.Wanted.Holder = 9200
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func TestSpread(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		hosts          string
		limit, perHost int
		want           string
	}{
		"one host":                       {"a a a", 2, 1, "n1 n2 n3"},
		"turn by turn":                   {"a a b b", 2, 1, "n1 n3 n2 n4"},
		"turn by turn, one at a time":    {"a a b b", 1, 1, "n1 n3 n2 n4"},
		"already so":                     {"a b a b", 2, 1, "n1 n2 n3 n4"},
		"the fullest host is never idle": {"a a a a b b c c", 2, 1, "n1 n5 n2 n7 n3 n6 n4 n8"},
		"two of a host at a time":        {"a a a a b b", 3, 2, "n1 n5 n2 n6 n3 n4"},
		"what shares a holder":           {"a+9200 b+9200 c d", 2, 1, "n1 n3 n2 n4"},
		"none":                           {"", 2, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, n := range spread(onHosts(tc.hosts, cluster.Worker, time.Minute), tc.limit, tc.perHost) {
				got = append(got, n.Node)
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("%q, want %q", s, tc.want)
			}
		})
	}
}

func TestEstimate(t *testing.T) {
	t.Parallel()
	workers := func(hosts string) []NodePlan { return onHosts(hosts, cluster.Worker, 4*time.Minute) }
	controls := func(hosts string) []NodePlan { return onHosts(hosts, cluster.ControlPlane, 2*time.Minute) }
	three := make([]cluster.Endpoint, 3)
	for name, tc := range map[string]struct {
		nodes  []NodePlan
		plan   Plan
		policy Policy
		want   time.Duration
	}{
		"nothing":                      {nil, Plan{}, Policy{}, 0},
		"one after the other":          {workers("a b"), Plan{}, Policy{}, 8 * time.Minute},
		"two at a time":                {workers("a b c"), Plan{MaxUnavailable: 2}, Policy{}, 8 * time.Minute},
		"two at a time on one host":    {workers("a a a"), Plan{MaxUnavailable: 2}, Policy{}, 12 * time.Minute},
		"two on one host":              {workers("a a"), Plan{MaxUnavailable: 2, PerHost: 2}, Policy{}, 4 * time.Minute},
		"control planes go one by one": {append(controls("a a"), workers("a a")...), Plan{MaxUnavailable: 3, PerHost: 3}, Policy{}, 8 * time.Minute},
		"side by side":                 {append(controls("a b"), workers("c d")...), Plan{WorkersBeside: true, MaxUnavailable: 2, ControlPlanes: three}, Policy{}, 4 * time.Minute},
		"side by side on one host":     {append(controls("a a"), workers("a")...), Plan{WorkersBeside: true, ControlPlanes: three}, Policy{}, 8 * time.Minute},
		"the API would be away":        {append(controls("a b"), workers("c d")...), Plan{WorkersBeside: true, MaxUnavailable: 2, ControlPlanes: three[:2]}, Policy{}, 8 * time.Minute},
		"a holder is shared":           {workers("a+9200 b+9200"), Plan{MaxUnavailable: 2}, Policy{}, 8 * time.Minute},
		"the canary is waited for":     {workers("a b c"), Plan{MaxUnavailable: 2}, Policy{Canary: true}, 8 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := tc.plan
			p.Nodes = tc.nodes
			p.Order(tc.policy)
			p.Arrange()
			if got := p.Estimate(); got != tc.want {
				t.Errorf("%s, want %s; batches %+v", got, tc.want, p.Batches)
			}
		})
	}
}

func TestBatches(t *testing.T) {
	t.Parallel()
	p := Plan{
		WorkersBeside: true, MaxUnavailable: 2, PerHost: 3, ControlPlanes: make([]cluster.Endpoint, 3),
		Nodes: append(onHosts("a b", cluster.ControlPlane, time.Minute), onHosts("a b+9200", cluster.Worker, time.Minute)...),
	}
	p.Nodes[2].Node, p.Nodes[3].Node = "n3", "n4"
	p.Order(Policy{Canary: true, CanaryNode: "n4"})
	p.Arrange()
	want := []Batch{
		{Phase: Canary, Nodes: []string{"n4"}, Limit: 1},
		{Phase: ControlPlanes, Nodes: []string{"n1", "n2"}, Limit: 1},
		{Phase: Workers, Nodes: []string{"n3"}, Limit: 2, Beside: true},
	}
	if diff := cmp.Diff(want, p.Batches); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int{cluster.ControlPlane: 1, "host/a": 3, "host/b": 3, "holder/9200": 1}, p.Room); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"holder/9200", "host/b"}, p.Nodes[0].Slots); diff != "" {
		t.Error(diff)
	}
}

// TestBegunGoesFirst: a node that an earlier run cordoned is already out, so no other goes
// before it or at the same time, not even the canary.
func TestBegunGoesFirst(t *testing.T) {
	t.Parallel()
	p := Plan{MaxUnavailable: 2, Nodes: onHosts("a b c", cluster.Worker, time.Minute)}
	p.Nodes[2].Found.Node = &cluster.KubeNode{Mark: &cluster.Mark{Run: "r1", Strategy: cluster.InPlace}}
	p.Order(Policy{Canary: true, CanaryNode: "n3"})
	p.Arrange()
	want := []Batch{
		{Phase: Unfinished, Nodes: []string{"n3"}, Limit: 1},
		{Phase: Canary, Nodes: []string{"n1"}, Limit: 1},
		{Phase: Workers, Nodes: []string{"n2"}, Limit: 2},
	}
	if diff := cmp.Diff(want, p.Batches); diff != "" {
		t.Error(diff)
	}
}

func TestQuorumOnOneHost(t *testing.T) {
	t.Parallel()
	for hosts, want := range map[string]string{
		"a b c":     "",
		"a a b":     "2 of 3 control planes are on Proxmox host a (n1, n2): etcd has no quorum without that host",
		"a a b b":   "2 of 4 control planes are on Proxmox host a (n1, n2): etcd has no quorum without that host; 2 of 4 control planes are on Proxmox host b (n3, n4): etcd has no quorum without that host",
		"a a b b c": "",
		"a a":       "", // two never survive the loss of one
		"a a a":     "", // there is no other host
	} {
		var o observe.Observation
		for _, n := range onHosts(hosts, cluster.ControlPlane, 0) {
			vm := cluster.VM{Host: n.Host}
			o.VMs = append(o.VMs, vm)
			o.Found = append(o.Found, observe.Found{Name: n.Node, VM: &vm, Machine: &cluster.Machine{ControlPlane: true}})
		}
		if got := strings.Join(o.QuorumOnOneHost(), "; "); got != want {
			t.Errorf("%s: %q, want %q", hosts, got, want)
		}
	}
}

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
