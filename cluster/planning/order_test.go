package planning

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
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
	type row struct {
		hosts          string
		limit, perHost int
		want           string
	}
	must.Each(t, map[string]row{
		"one host":                       {"a a a", 2, 1, "n1 n2 n3"},
		"turn by turn":                   {"a a b b", 2, 1, "n1 n3 n2 n4"},
		"turn by turn, one at a time":    {"a a b b", 1, 1, "n1 n3 n2 n4"},
		"already so":                     {"a b a b", 2, 1, "n1 n2 n3 n4"},
		"the fullest host is never idle": {"a a a a b b c c", 2, 1, "n1 n5 n2 n7 n3 n6 n4 n8"},
		"two of a host at a time":        {"a a a a b b", 3, 2, "n1 n5 n2 n6 n3 n4"},
		"what shares a holder":           {"a+9200 b+9200 c d", 2, 1, "n1 n3 n2 n4"},
		"none":                           {"", 2, 1, ""},
	}, func(t *testing.T, tc row) {
		var got []string
		for _, n := range spread(onHosts(tc.hosts, cluster.Worker, time.Minute), tc.limit, tc.perHost) {
			got = append(got, n.Node)
		}
		must.Equal(t, "batches", tc.want, strings.Join(got, " "))
	})
}

func TestEstimate(t *testing.T) {
	t.Parallel()
	workers := func(hosts string) []NodePlan { return onHosts(hosts, cluster.Worker, 4*time.Minute) }
	controls := func(hosts string) []NodePlan { return onHosts(hosts, cluster.ControlPlane, 2*time.Minute) }
	three := make([]cluster.Endpoint, 3)
	type row struct {
		nodes  []NodePlan
		plan   Plan
		policy Policy
		want   time.Duration
	}
	must.Each(t, map[string]row{
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
	}, func(t *testing.T, tc row) {
		p := tc.plan
		p.Nodes = tc.nodes
		p.Order(tc.policy)
		p.Arrange()
		must.Equal(t, fmt.Sprintf("estimate of batches %+v", p.Batches), tc.want, p.Estimate())
	})
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
	must.Equal(t, "got", want, p.Batches)
	must.Equal(t, "got", map[string]int{cluster.ControlPlane: 1, "host/a": 3, "host/b": 3, "holder/9200": 1}, p.Room)
	must.Equal(t, "got", []string{"holder/9200", "host/b"}, p.Nodes[0].Slots)
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
	must.Equal(t, "got", want, p.Batches)
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
		must.Equal(t, hosts, want, strings.Join(o.QuorumOnOneHost(), "; "))
	}
}

// inPlan names the nodes of a plan in their order.
func inPlan(p Plan) string {
	names := cluster.Each(p.Nodes, func(n NodePlan) string { return n.Node })
	return strings.Join(names, " ")
}

// TestOwnPodGoesLast: the node that recast runs on is the last of its kind, and nothing goes beside it.
func TestOwnPodGoesLast(t *testing.T) {
	t.Parallel()
	type row struct {
		own    string
		policy Policy
		want   string
		beside bool
	}
	must.Each(t, map[string]row{
		"no pod of it":         {want: "cp1 cp2 wk1 wk2", beside: true},
		"on a worker":          {own: "wk1", want: "cp1 cp2 wk2 wk1"},
		"on a control plane":   {own: "cp1", want: "cp2 cp1 wk1 wk2"},
		"workers first":        {own: "wk1", policy: Policy{WorkersFirst: true}, want: "wk2 wk1 cp1 cp2"},
		"another canary":       {own: "wk1", policy: Policy{Canary: true}, want: "wk2 cp1 cp2 wk1"},
		"it is the canary":     {own: "wk1", policy: Policy{Canary: true, CanaryNode: "wk1"}, want: "wk1 cp1 cp2 wk2"},
		"on none of the plan":  {own: "gpu1", want: "cp1 cp2 wk1 wk2", beside: true},
		"another one's canary": {own: "cp1", policy: Policy{Canary: true}, want: "wk1 cp2 cp1 wk2"},
	}, func(t *testing.T, c row) {
		nodes := slices.Concat(onHosts("a b", cluster.ControlPlane, time.Minute), onHosts("a b", cluster.Worker, time.Minute))
		for i, name := range []string{"cp1", "cp2", "wk1", "wk2"} {
			nodes[i].Node = name
			nodes[i].Drift = observe.Drift{Reasons: []cluster.Reason{{Code: "talos-version"}}}
		}
		p := Plan{Nodes: nodes, WorkersBeside: true, MaxUnavailable: 2, ControlPlanes: make([]cluster.Endpoint, 3)}
		heedOwnPod(&p, observe.Observation{OwnPod: observe.OwnPod{Node: c.own}})
		p.Order(c.policy)
		p.Arrange()
		must.Equal(t, "order", c.want, inPlan(p))
		must.Equal(t, fmt.Sprintf("beside of batches %+v", p.Batches), c.beside, p.Batches[len(p.Batches)-1].Beside)
		for _, n := range p.Nodes {
			if said := strings.Contains(strings.Join(n.Notes, "; "), "recast runs on it as a pod"); said != (n.Node == c.own) || n.OwnPod != said || len(n.Refused) > 0 {
				t.Errorf("%s: notes %q, refused %q", n.Node, n.Notes, n.Refused)
			}
		}
	})
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
	type row struct {
		node   NodePlan
		planes int
		own    observe.OwnPod
		dark   error
		want   string // a part of the refusal; "": none
	}
	must.Each(t, map[string]row{
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
	}, func(t *testing.T, c row) {
		p := Plan{Nodes: []NodePlan{c.node}, ControlPlanes: make([]cluster.Endpoint, c.planes)}
		heedOwnPod(&p, observe.Observation{OwnPod: c.own, Dark: c.dark})
		refused := strings.Join(p.Nodes[0].Refused, "; ")
		if (refused != "") != (c.want != "") || !strings.Contains(refused, c.want) {
			t.Errorf("refused %q, want %q", refused, c.want)
		}
	})
}

// TestSavedPlanOfAnotherPod: a saved plan keeps its order, wherever recast runs when it is carried out.
func TestSavedPlanOfAnotherPod(t *testing.T) {
	t.Parallel()
	on := func(node string) Plan {
		return sealed(t, func(_ []cluster.Wanted, o *observe.Observation) { o.OwnPod.Node = node }, Policy{})
	}
	saved := on("wk1")
	must.Equal(t, "order", "wk2 wk1", inPlan(saved))
	for _, node := range []string{"wk1", "wk2", ""} {
		got := must.Get(on(node).Follow(saved, false))(t)
		must.Equal(t, "order and ID on "+node, []string{inPlan(saved), saved.ID}, []string{inPlan(got), got.ID})
		for _, n := range got.Nodes {
			must.Equal(t, fmt.Sprintf("on %q: %s is its own", node, n.Node), n.Node == node, n.OwnPod)
		}
		must.Equal(t, "batches on "+node+", saved and followed", saved.Batches, got.Batches)
	}
}

// TestAPausedNodeProvesNoBuild: a node that is not rolled because it is paused does not prove that
// it runs the new build.
func TestAPausedNodeProvesNoBuild(t *testing.T) {
	t.Parallel()
	wanted, o := paused(map[string]string{"cp1": "x"})
	must.Equal(t, "phase", Canary, planned(t, wanted, o, Policy{Canary: true}).Batches[0].Phase)
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
		got := cluster.Each(plan.Nodes, func(n NodePlan) string { return n.Node })
		if strings.TrimSpace(want) != strings.Join(got, " ") || (err != nil) != (len(got) == 0) || err != nil && fault.KindOf(err) != fault.Config {
			t.Errorf("%q, want %q; %v", got, want, err)
		}
	}
}

func TestPausedNodesStay(t *testing.T) {
	t.Parallel()
	wanted, o := paused(map[string]string{"wk1": "a disk is being replaced"})
	plan := planned(t, wanted, o, Policy{Canary: true, Exclude: []string{"cp1"}})
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

// bedside is a cluster whose pulse is taken; nil members: no control plane answers.
type bedside struct {
	cluster.Kube
	cluster.Talos
	nodes   []cluster.KubeNode
	members []cluster.EtcdMember
	status  map[netip.Addr]cluster.EtcdStatus
}

func (p bedside) Nodes(context.Context) ([]cluster.KubeNode, error) {
	if p.nodes == nil {
		return nil, errors.New("connection refused")
	}
	return p.nodes, nil
}

func (p bedside) EtcdMembers(context.Context, netip.Addr) ([]cluster.EtcdMember, error) {
	return p.members, nil
}

func (p bedside) EtcdStatus(_ context.Context, addr netip.Addr) (cluster.EtcdStatus, error) {
	if s, known := p.status[addr]; known {
		return s, nil
	}
	return cluster.EtcdStatus{}, errors.New("no route to host")
}

func TestTakePulse(t *testing.T) {
	t.Parallel()
	at := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }
	plan := Plan{ControlPlanes: []cluster.Endpoint{{Node: "cp1", Addr: at(1)}, {Node: "cp2", Addr: at(2)}, {Node: "cp3", Addr: at(3)}, {Node: "cp4", Addr: at(4)}}}
	members := []cluster.EtcdMember{{ID: 1, Name: "cp1"}, {ID: 2, Name: "cp2"}, {ID: 3, Name: "cp3"}, {ID: 4, Name: "cp4"}}
	type row struct {
		of   bedside
		want Pulse
	}
	cases := map[string]row{
		"no answer": {bedside{}, Pulse{}},
		"all is well": {
			bedside{nodes: []cluster.KubeNode{{Name: "cp1", Ready: true}}, members: members[:1], status: map[netip.Addr]cluster.EtcdStatus{at(1): {MemberID: 1, Leader: 1}}},
			Pulse{Kubernetes: true, Nodes: 1, Etcd: true, Members: 1},
		},
		"a node and three members are not": {
			bedside{
				nodes:   []cluster.KubeNode{{Name: "wk2"}, {Name: "cp1", Ready: true}, {Name: "wk1"}},
				members: members,
				status:  map[netip.Addr]cluster.EtcdStatus{at(1): {MemberID: 1, Leader: 1}, at(2): {MemberID: 2, Leader: 1, Learner: true}, at(3): {MemberID: 3}},
			},
			Pulse{Kubernetes: true, Nodes: 3, NotReady: []string{"wk1", "wk2"}, Etcd: true, Members: 4, Unwell: []string{"cp2", "cp3", "cp4"}},
		},
	}
	must.Each(t, cases, func(t *testing.T, c row) {
		got := plan.TakePulse(t.Context(), c.of, c.of)
		must.Equal(t, "pulse", c.want, got)
		if got.Ready()+len(got.NotReady) != got.Nodes || got.Well()+len(got.Unwell) != got.Members {
			t.Errorf("%d Ready, %d well", got.Ready(), got.Well())
		}
	})
}
