package planning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// onHosts is a plan of nodes by their hosts: "a a b" has n1 and n2 on a. A host with a suffix,
// as in "a+9200", has its node's disks owned by that VM.
func onHosts(hosts string, role string, outage time.Duration) (nodes []NodePlan) {
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
		must.Hold(t, (refused != "") == (c.want != "") && strings.Contains(refused, c.want),
			"refused %q, want %q", refused, c.want)
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
		"  ":      {Only: []string{"wk9"}},
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
	work := plan.Work()
	must.Hold(t, len(work) == 1 && work[0].Node == "wk2" && len(plan.Batches) == 1, "%+v", work)
	for _, n := range plan.Nodes {
		must.Hold(t, n.Node != "wk1" || n.Why == "paused: a disk is being replaced" && n.Drift.Stale && len(n.Slots) == 0,
			"%+v", n)
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
		got := strings.Join(plan.Refused(), "\n")
		must.Hold(t, err == nil && got == want, "%q, %v", got, err)
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

// patchesNothing refuses a configuration with the word refused, and leaves others unchanged.
type patchesNothing struct{ cluster.Maintenance }

func (patchesNothing) PatchConfig(config cluster.Secret, _ cluster.ConfigPatch) (cluster.Secret, error) {
	if strings.Contains(string(config), "refused") {
		return nil, fault.MachineConfig.Refusedf("Talos would refuse it: refused")
	}
	return config, nil
}

func (patchesNothing) ConfigEffect(_, wanted cluster.Secret) (effect cluster.ConfigEffect, err error) {
	if strings.Contains(string(wanted), "udev") {
		effect.Reboot = []string{"machine.udev"}
	}
	if strings.Contains(string(wanted), "controlplane") {
		effect.Identity = []string{"the node's role"}
	}
	if strings.Contains(string(wanted), "foreign") {
		effect.Identity = append(effect.Identity, "the cluster's ID", "the CA of etcd")
	}
	return effect, nil
}

func (patchesNothing) TrustedCA(text cluster.Secret) (trusted, known bool, err error) {
	return !strings.Contains(string(text), "foreign"), !strings.Contains(string(text), "no CA"), nil
}

func (patchesNothing) ConfigVolumes(cluster.Secret, string) ([]cluster.ConfigVolume, error) {
	return nil, nil
}

func (patchesNothing) Selectors(context.Context, netip.Addr, bool, cluster.Secret, string) ([]cluster.DiskSelector, error) {
	return nil, nil
}

// filed is the paused world with a file of wk1, as Observe returns it; edit changes what was found of wk1.
func filed(t *testing.T, runs, file string, edit func(*observe.Found)) func([]cluster.Wanted, *observe.Observation) {
	t.Helper()
	return func(wanted []cluster.Wanted, o *observe.Observation) {
		f := &o.Found[1]
		src := observe.Sources{Maintenance: patchesNothing{}, MachineConfig: fileOf("wk1", file)}
		if edit != nil {
			edit(f)
		}
		if runs != "" && f.Machine != nil {
			m := *f.Machine
			m.Configs = cluster.Configs{Stored: cluster.Secret(runs), Active: cluster.Secret(runs)}
			f.Machine = &m
		}
		observe.ObserveFiles(t.Context(), src, wanted, o.Found)
	}
}

// fileOf are files of which only one node has one; "": none has.
func fileOf(name, file string) func(context.Context, string) (cluster.Secret, bool, error) {
	return func(_ context.Context, node string) (cluster.Secret, bool, error) {
		return cluster.Secret(file), node == name && file != "", nil
	}
}

const (
	hasToken = "machine: {token: abcdef.0123456789abcdef, nodeLabels: {a: x}}"
	hasOther = "machine: {token: ghijkl.0123456789abcdef, nodeLabels: {a: y}}"
)

// TestPlanShowsTheFile: what the node's file changes is shown if it is applied, noted if it is
// not, and refused if that is unknown.
func TestPlanShowsTheFile(t *testing.T) {
	t.Parallel()
	changes := []config.Change{
		{Document: "v1alpha1", Path: "machine.nodeLabels.a", Kind: config.Changed, Found: "x", Wanted: "y"},
		{Document: "v1alpha1", Path: "machine.token", Kind: config.Changed, Found: config.Hidden, Wanted: config.Hidden},
	}
	asked := func(s cluster.Strategy) func(w []cluster.Wanted) {
		return func(w []cluster.Wanted) { w[1].Strategy = s }
	}
	type row struct {
		runs, file string
		wanted     func(w []cluster.Wanted)
		edit       func(*observe.Found)
		applied    bool
		changes    []config.Change
		note       string
		refused    string
	}
	must.Each(t, map[string]row{
		"no file":  {runs: hasToken},
		"the same": {runs: hasToken, file: "# from git\n" + hasToken, applied: true},
		"recreate": {runs: hasToken, file: hasOther, applied: true, changes: changes},
		"reimage":  {runs: hasToken, file: hasOther, wanted: asked(cluster.Reimage), applied: true, changes: changes},
		"in place": {runs: hasToken, file: hasOther, wanted: asked(cluster.InPlace), applied: true, changes: changes},
		"another role": {runs: hasToken, file: "machine: {type: controlplane}", applied: true, changes: []config.Change{
			{Document: "v1alpha1", Path: "machine.nodeLabels.a", Kind: config.Removed, Found: "x"},
			{Document: "v1alpha1", Path: "machine.token", Kind: config.Removed, Found: config.Hidden},
			{Document: "v1alpha1", Path: "machine.type", Kind: config.Added, Wanted: "controlplane"},
		}, refused: "would change the node's role"},
		"in place, same":   {runs: hasToken, file: hasToken, wanted: asked(cluster.InPlace)},
		"in place, unread": {file: hasToken, wanted: asked(cluster.InPlace), note: "its file in talos.machineConfigs was not compared with what it runs: the machine shows no configuration to compare it with; this roll leaves the configuration as it is"},
		"unread":           {file: hasToken, refused: "its file in talos.machineConfigs can't be applied: the machine shows no configuration to compare it with"},
		"Talos refuses it": {runs: hasToken, file: "refused: 1", refused: "its file in talos.machineConfigs can't be applied: Talos would refuse it: refused"},
		"not comparable":   {runs: "refused: 1", file: hasToken, refused: "its file in talos.machineConfigs can't be applied: what the node runs can't be compared with it: Talos would refuse it: refused"},
		"no YAML":          {runs: hasToken, file: "{", refused: "its file in talos.machineConfigs can't be applied: not a machine configuration: line 2: not valid YAML"},
		"in sync, unread": {file: hasOther, refused: "its file in talos.machineConfigs can't be compared with what it runs: the machine shows no configuration to compare it with", edit: func(f *observe.Found) {
			m := clustertest.InSync()
			m.UUID, m.SystemDisk, m.Disks = f.Machine.UUID, f.Machine.SystemDisk, f.Machine.Disks
			f.Machine = &m
		}},
	}, func(t *testing.T, tc row) {
		wanted, o := paused(nil)
		if tc.wanted != nil {
			tc.wanted(wanted)
		}
		filed(t, tc.runs, tc.file, tc.edit)(wanted, &o)
		plan := planned(t, wanted, o, Policy{Only: []string{"wk1"}})
		n := plan.Nodes[0]
		var shown cluster.ConfigFile
		if n.ConfigFile != nil {
			shown = *n.ConfigFile
		}
		must.Equal(t, "changes", tc.changes, shown.Changes)
		must.Equal(t, "applied", tc.applied, shown.Applied)
		must.Hold(t, !tc.applied || len(shown.Hash) == 64 && shown.Runs == cluster.ConfigSum([]byte(tc.runs)),
			"the plan is bound to %q and %q", shown.Hash, shown.Runs)
		for _, text := range []struct {
			what, want string
			got        []string
		}{{"notes", tc.note, n.Notes}, {"refusals", tc.refused, n.Refused}} {
			all := strings.Join(text.got, "\n")
			must.Hold(t, strings.Contains(all, text.want) && (text.want != "" || !strings.Contains(all, "machineConfigs")),
				"%s: %q, want %q", text.what, all, text.want)
		}
	})
}

// TestSavedPlanIsBoundToTheFile: another file, another configuration on the node, and a new
// file are differences; another style is none. A saved plan contains no secret.
func TestSavedPlanIsBoundToTheFile(t *testing.T) {
	t.Parallel()
	saved := sealed(t, filed(t, hasToken, hasOther, nil), Policy{})
	if text := string(asJSON(t, saved)); strings.Contains(text, "0123456789abcdef") || !strings.Contains(text, "machine.nodeLabels.a") {
		t.Errorf("the saved plan:\n%s", text)
	}
	for name, tc := range map[string]struct{ runs, file, want string }{
		"nothing moved":         {hasToken, hasOther, ""},
		"another style":         {hasToken, "# new\nmachine:\n  nodeLabels: {a: y}\n  token: \"ghijkl.0123456789abcdef\"\n", ""},
		"another file":          {hasToken, hasToken, "wk1: its file in talos.machineConfigs: "},
		"another secret":        {hasToken, strings.Replace(hasOther, "ghijkl", "mnopqr", 1), "wk1: its file in talos.machineConfigs: "},
		"no file":               {hasToken, "", "→ none"},
		"another configuration": {strings.Replace(hasToken, "x", "z", 1), hasOther, "wk1: the configuration that it runs: "},
	} {
		now := sealed(t, filed(t, tc.runs, tc.file, nil), Policy{})
		_, err := now.Follow(saved, false)
		if tc.want == "" && err != nil || tc.want != "" && (fault.CodeOf(err) != fault.PlanMoved || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := must.Get(json.Marshal(saved))(t)
	if got, err := Read(b); err != nil || got.ID != saved.ID {
		t.Errorf("it does not read back: %v", err)
	}
	if other := sealed(t, filed(t, hasToken, hasToken, nil), Policy{}); other.ID == saved.ID {
		t.Error("the plan's ID does not depend on the file")
	}
}

// TestTheFileOfAMachineWithoutConfiguration: the file of a machine that was reset, or with which a cluster
// begins, is compared with what others run, else with the talosconfig, and with the node's role.
func TestTheFileOfAMachineWithoutConfiguration(t *testing.T) {
	t.Parallel()
	const (
		ours       = "machine: {type: worker, nodeLabels: {b: z}}"
		foreign    = "machine: {type: worker, nodeLabels: {b: foreign}}"
		notEqual   = "its file in talos.machineConfigs differs from cp1 in the cluster's ID, the CA of etcd: is it the file of another cluster?"
		notTrusted = "its file in talos.machineConfigs differs from the talosconfig in the CA of Talos: is it the file of another cluster?"
		onlyCA     = "only the CA of Talos was compared, with the talosconfig's"
		nothing    = "is for you to see"
	)
	blank := func(f *observe.Found) {
		f.Blank = &cluster.BlankMachine{Machine: cluster.Machine{MachineStanding: cluster.MachineStanding{Stage: "maintenance"}, SystemDisk: "sda"}}
		f.Machine, f.ConfigKnown, f.ConfigIn = nil, true, cluster.ConfigInFile
	}
	absent := func(f *observe.Found) {
		f.Absent, f.Machine, f.VM, f.Node = &observe.Absent{Host: "pve1"}, nil, nil, nil
	}
	type row struct {
		found         func(*observe.Found)
		shows, first  bool // cp1 shows its configuration; the cluster begins with it
		file          string
		refused, note string
	}
	must.Each(t, map[string]row{
		"reset":                             {found: blank, shows: true, file: ours},
		"reset, of another cluster":         {found: blank, shows: true, file: foreign, refused: notEqual},
		"reset, of another role":            {found: blank, shows: true, file: "machine: {type: controlplane}", refused: "makes it a control-plane, and it is a worker: is it the file of another node?"},
		"reset, nobody shows":               {found: blank, file: ours, note: onlyCA},
		"reset, nobody shows, another CA":   {found: blank, file: foreign, refused: notTrusted},
		"reset, nothing to compare with":    {found: blank, file: ours + " # no CA", note: nothing},
		"a new node":                        {found: absent, shows: true, file: ours},
		"a new node, of another cluster":    {found: absent, shows: true, file: foreign, refused: notEqual},
		"a new node, nobody shows":          {found: absent, file: ours, refused: "whether its file in talos.machineConfigs is of this cluster can't be seen"},
		"the first":                         {found: absent, first: true, file: strings.Replace(ours, "worker", "controlplane", 1), note: onlyCA},
		"the first, of another cluster":     {found: absent, first: true, file: strings.Replace(foreign, "worker", "controlplane", 1), refused: notTrusted},
		"the first, beside workers":         {found: absent, first: true, shows: true, file: strings.Replace(ours, "worker", "controlplane", 1)},
		"the first, beside others' workers": {found: absent, first: true, shows: true, file: strings.Replace(foreign, "worker", "controlplane", 1), refused: notEqual},
	}, func(t *testing.T, tc row) {
		wanted, o := paused(nil)
		for i := range o.Found {
			m := *o.Found[i].Machine
			if m.Configs = (cluster.Configs{}); tc.shows && o.Found[i].Name == "cp1" {
				m.Configs.Stored, m.Configs.Active = cluster.Secret("machine: {type: controlplane}"), cluster.Secret("machine: {type: controlplane}")
			}
			o.Found[i].Machine = &m
		}
		src := observe.Sources{Maintenance: patchesNothing{}, MachineConfig: fileOf("wk1", tc.file)}
		if tc.first {
			o.First, src.First = "wk1", "wk1"
		}
		tc.found(&o.Found[1])
		observe.ObserveFiles(t.Context(), src, wanted, o.Found)
		n := ForNode(wanted[1], o.Found[1], o, clustertest.Past, Policy{})
		refused, notes := strings.Join(n.Refused, "\n"), strings.Join(n.Notes, "\n")
		if !strings.Contains(refused, tc.refused) || tc.refused == "" && strings.Contains(refused, "machineConfigs") {
			t.Errorf("refused %q, want %q", refused, tc.refused)
		}
		if !strings.Contains(notes, tc.note) || tc.note == "" && tc.refused == "" && strings.Contains(notes, "machineConfigs") {
			t.Errorf("notes %q, want %q", notes, tc.note)
		}
	})
}

// TestAFileWithNoWayOut: what a file brings, and no later roll could take back, is refused unless the node has it already.
func TestAFileWithNoWayOut(t *testing.T) {
	t.Parallel()
	const (
		locked = "volume u-data is encrypted with lockToState and would be unreadable once STATE is gone"
		tpm    = "volume STATE is encrypted with a TPM key, but the VM has no tpmstate0"
		omni   = "its file in talos.machineConfigs has SideroLinkConfig, which joins the machine to Omni"
	)
	volume := func(match string) string {
		return "---\nkind: UserVolumeConfig\nname: data\nprovisioning: {diskSelector: {match: " + match + "}}\n"
	}
	toState := cluster.Encryption{Volume: "u-data", Keys: []string{"nodeID"}, LockToState: true}
	type row struct {
		runs, adds string
		want       string
		seals, has cluster.Encryption
	}
	must.Each(t, map[string]row{
		"a key locked to STATE":         {adds: volume("'!system_disk'"), seals: toState, want: locked},
		"one that goes with STATE":      {adds: volume("system_disk"), seals: toState},
		"a key that is not locked":      {adds: volume("'!system_disk'"), seals: cluster.Encryption{Volume: "u-data", Keys: []string{"nodeID"}}},
		"a key that it has already":     {adds: volume("'!system_disk'"), seals: toState, has: toState},
		"a TPM that the VM has not":     {seals: cluster.Encryption{Volume: "STATE", Keys: []string{"tpm"}}, want: tpm},
		"Omni":                          {adds: "---\nkind: SideroLinkConfig\napiVersion: v1alpha1\n", want: omni},
		"Omni already":                  {runs: "---\nkind: SideroLinkConfig\n", adds: "---\nkind: SideroLinkConfig\napiVersion: v1alpha1\n"},
		"an argument of Omni, for GRUB": {adds: "argument", want: "adds the kernel argument siderolink.api, with which the node could neither be recreated nor reimaged"},
	}, func(t *testing.T, tc row) {
		n := NodePlan{Strategy: cluster.ApplyConfig, Found: observe.Found{VM: &cluster.VM{Config: map[string]string{}}}}
		m := clustertest.InSync()
		m.SystemDisk, m.Configs.Active = "sda", cluster.Secret("machine: {type: worker}\n"+tc.runs)
		if tc.has.Volume != "" {
			m.Encryption = []cluster.Encryption{tc.has}
		}
		n.Found.Machine = &m
		text := "machine: {type: worker}\n" + tc.adds
		if tc.adds == "argument" {
			text = "machine: {type: worker, install: {extraKernelArgs: ['siderolink.api=grpc://x']}}\n"
		}
		was, errWas := config.Parse(m.Configs.Active)
		is, errIs := config.Parse([]byte(text))
		must.Do(t, errors.Join(errWas, errIs))
		file := cluster.FoundFile{ConfigFile: cluster.ConfigFile{Changes: config.Compare(was, is)}, Omni: is.Has(cluster.OmniDocument)}
		if tc.seals.Volume != "" {
			file.Encryption = []cluster.Encryption{tc.seals}
		}
		got := strings.Join(n.refusedConfig(file), "\n")
		must.Hold(t, strings.Contains(got, tc.want) && (tc.want != "" || got == ""), "refused %q, want %q", got, tc.want)
	})
}

// selects is one selector, and what the plan says of what it finds.
type selects struct {
	cluster.DiskSelector
	says    string // "": nothing
	refused bool
}

func selected(kind cluster.SelectorKind, id, document, says string, refused bool, found ...string) selects {
	s := cluster.DiskSelector{ID: id, Document: document, Match: "disk.size > 1u", Kind: kind, Found: found}
	if slices.Contains(found, "sda") {
		s.System = "sda"
	}
	return selects{s, says, refused}
}

func (s selects) unknown(why string) selects { s.Unknown, s.Found = why, nil; return s }
func (s selects) broken(err string) selects  { s.Broken, s.Found = err, nil; return s }
func (s selects) match(expr string) selects  { s.Match = expr; return s }

// selectorsOfEachKind are of volumes that VM 101 does not have. Its system disk is sda.
func selectorsOfEachKind() map[string]selects {
	const (
		nothing, system = "no disk of VM 101 matches the selector of ", " matches the system disk (sda): what is on it goes with the system disk"
		one, whole      = "the node would not be whole", "refuses that for a whole disk"
	)
	out := map[string]selects{
		"whole disk":                {DiskSelector: selected(cluster.ForWholeDisk, "u-w", "UserVolumeConfig w", "", false, "sdb").DiskSelector},
		"whole disk, nothing":       selected(cluster.ForWholeDisk, "u-w", "UserVolumeConfig w", nothing+"UserVolumeConfig w: ", true),
		"whole disk, several":       selected(cluster.ForWholeDisk, "u-w", "UserVolumeConfig w", "2 disks match the selector of UserVolumeConfig w (sdb, sdc): Talos "+whole, true, "sdb", "sdc"),
		"whole disk, the system":    selected(cluster.ForWholeDisk, "u-w", "UserVolumeConfig w", "the system disk (sda): which has partitions of Talos", true, "sda"),
		"whole disk, an error":      selected(cluster.ForWholeDisk, "u-w", "UserVolumeConfig w", "Talos can't evaluate the selector of UserVolumeConfig w: no such attribute(s): system_disk", true).broken("no such attribute(s): system_disk"),
		"device":                    selected(cluster.ForDevice, "/dev/sdb-1", "machine.disks /dev/sdb", "", false, "sdb"),
		"device, nothing":           selected(cluster.ForDevice, "/dev/sdx-1", "machine.disks /dev/sdx", "no disk of VM 101 matches machine.disks /dev/sdx: ", true),
		"device, the system":        selected(cluster.ForDevice, "/dev/sda-1", "machine.disks /dev/sda", "machine.disks /dev/sda matches the system disk (sda): which has", true, "sda"),
		"existing":                  selected(cluster.ForExisting, "e-x", "ExistingVolumeConfig x", "", false, "sdb1"),
		"existing, nothing":         selected(cluster.ForExisting, "e-x", "ExistingVolumeConfig x", "no volume of VM 101 matches the selector of ExistingVolumeConfig x: pods would write to EPHEMERAL", true),
		"existing, several":         selected(cluster.ForExisting, "e-x", "ExistingVolumeConfig x", "2 volumes match the selector of ExistingVolumeConfig x (sdb1, sdc1): Talos takes the first", false, "sdb1", "sdc1"),
		"existing, the system":      selected(cluster.ForExisting, "e-x", "ExistingVolumeConfig x", system, false, "sda"),
		"existing, an error":        selected(cluster.ForExisting, "e-x", "ExistingVolumeConfig x", "Talos can't evaluate", true).broken("no such key"),
		"members":                   selected(cluster.ForMembers, "", "LVMVolumeGroupConfig vg", "", false, "sdb", "sdc"),
		"members, nothing":          selected(cluster.ForMembers, "", "LVMVolumeGroupConfig vg", "no volume of VM 101 matches the selector of LVMVolumeGroupConfig vg: ", false),
		"install":                   selected(cluster.ForInstall, "", "UnattendedInstallConfig", "", false, "sda"),
		"install, nothing":          selected(cluster.ForInstall, "", "UnattendedInstallConfig", nothing+"UnattendedInstallConfig: recast names the disk", false),
		"install, several":          selected(cluster.ForInstall, "", "machine.install.diskSelector", "2 disks match the selector of machine.install.diskSelector (sda, sdb): recast", false, "sda", "sdb"),
		"EPHEMERAL where it is":     selected(cluster.ForPartition, "CRI", "VolumeConfig CRI", "", false, "sda").match("system_disk"),
		"user volume, on purpose":   selected(cluster.ForPartition, "u-x", "UserVolumeConfig x", system, false, "sda").match("system_disk"),
		"several, with the system":  selected(cluster.ForPartition, "u-x", "UserVolumeConfig x", "(sda, sdb): Talos takes the first one with room; the selector of UserVolumeConfig x"+system, false, "sda", "sdb"),
		"unknown, though it counts": selected(cluster.ForWholeDisk, "u-x", "UserVolumeConfig x", "what UserVolumeConfig x selects can't be evaluated yet: later", false).unknown("later"),
	}
	for id, document := range map[string]string{"u-p": "UserVolumeConfig p", "r-p": "RawVolumeConfig p", "s-p": "SwapVolumeConfig p", "ETCD": "VolumeConfig ETCD", "KUBELET": "VolumeConfig KUBELET"} {
		out[document] = selected(cluster.ForPartition, id, document, "", false, "sdb")
		out[document+", nothing"] = selected(cluster.ForPartition, id, document, nothing+document+": Talos could not make the volume, and "+one, true)
		out[document+", several"] = selected(cluster.ForPartition, id, document, "2 disks match the selector of "+document+" (sdb, sdc): Talos takes the first one with room", false, "sdb", "sdc")
		out[document+", the system"] = selected(cluster.ForPartition, id, document, "the selector of "+document+system, false, "sda")
		out[document+", unknown"] = selected(cluster.ForPartition, id, document, "what "+document+" selects can't be evaluated yet: which", false).unknown("which one is the system disk is not known")
		out[document+", an error"] = selected(cluster.ForPartition, id, document, "Talos can't evaluate the selector of "+document+": division by zero", true).broken("division by zero")
	}
	return out
}

func withSelector(s cluster.Strategy, of cluster.DiskSelector) NodePlan {
	m := cluster.Machine{SystemDisk: "sda", Volumes: []cluster.Volume{{Disk: "sda", Label: "EPHEMERAL"}}}
	n := NodePlan{Node: "wk1", Role: cluster.Worker, Strategy: s, WithConfig: true, Found: observe.Found{Machine: &m, VM: &cluster.VM{ID: 101}}}
	n.Found.File = &cluster.FoundFile{Selectors: []cluster.DiskSelector{of}}
	return n
}

// TestPlanOfSelectors: what a selector of a file that goes out finds is said, and refused where the node would not be
// whole; what can't be evaluated is no match, and no refusal.
func TestPlanOfSelectors(t *testing.T) {
	t.Parallel()
	for name, tc := range selectorsOfEachKind() {
		for _, s := range handing {
			n := withSelector(s, tc.DiskSelector)
			n.planSelectors()
			refused, notes := strings.Join(n.Refused, "\n"), strings.Join(n.Notes, "\n")
			said := notes
			if tc.refused {
				said, notes = refused, notes+"\n"
			}
			if (refused != "") != tc.refused || (said == "") != (tc.says == "") || !strings.Contains(said, tc.says) || strings.TrimSpace(notes) != "" && tc.refused {
				t.Errorf("%s, %s: refused %q, notes %q, want %q", name, s, refused, notes, tc.says)
			}
		}
		n := withSelector(cluster.InPlace, tc.DiskSelector)
		n.WithConfig = false
		if n.planSelectors(); len(n.Refused)+len(n.Notes) > 0 {
			t.Errorf("%s: a file that does not go out: %q %q", name, n.Refused, n.Notes)
		}
	}
}

// TestSelectorsOfWhatIsThere: a partition that is there and stays is found by its label, whatever its selector matches;
// one that leaves is made anew; a volume that Talos can't make now either is only noted.
func TestSelectorsOfWhatIsThere(t *testing.T) {
	t.Parallel()
	none := selected(cluster.ForPartition, "u-x", "UserVolumeConfig x", "", false).DiskSelector
	for name, tc := range map[string]struct {
		there   cluster.VolumeStatus
		label   string // disk with a partition of that label
		kind    cluster.SelectorKind
		refused []cluster.Strategy
		noted   []cluster.Strategy
	}{
		"on a disk that stays":      {there: cluster.VolumeStatus{ID: "u-x", Type: "partition", Location: "/dev/sdb1", Disk: "sdb"}},
		"only its label":            {label: "sdb"},
		"on the system disk":        {there: cluster.VolumeStatus{ID: "u-x", Type: "partition", Location: "/dev/sda5", Disk: "sda"}, refused: leaving},
		"its label on the system's": {label: "sda", refused: leaving},
		"a whole disk is looked for at each boot": {
			there: cluster.VolumeStatus{ID: "u-x", Type: "disk", Location: "/dev/sdb", Disk: "sdb"}, kind: cluster.ForWholeDisk, refused: handing,
		},
		"nowhere":       {refused: handing},
		"stuck already": {there: cluster.VolumeStatus{ID: "u-x", Type: "partition", Phase: "failed", Error: "no disks matched"}, noted: handing},
	} {
		for _, s := range handing {
			of := none
			if tc.kind != "" {
				of.Kind = tc.kind
			}
			n := withSelector(s, of)
			n.Found.Volumes.Runs = []cluster.ConfigVolume{{ID: "u-x", Place: of.Match}}
			if tc.there.ID != "" {
				n.Found.Machine.VolumeStatuses = []cluster.VolumeStatus{tc.there}
			}
			if tc.label != "" {
				n.Found.Machine.Volumes = append(n.Found.Machine.Volumes, cluster.Volume{Disk: tc.label, Label: "u-x"})
			}
			n.planSelectors()
			if (len(n.Refused) > 0) != slices.Contains(tc.refused, s) || (len(n.Notes) > 0) != slices.Contains(tc.noted, s) {
				t.Errorf("%s, %s: refused %q, notes %q", name, s, n.Refused, n.Notes)
			}
		}
	}
	n := withSelector(cluster.ApplyConfig, none)
	n.Found.Machine.VolumeStatuses = []cluster.VolumeStatus{{ID: "u-x", Type: "partition", Phase: "failed"}}
	n.Found.Volumes.Runs = []cluster.ConfigVolume{{ID: "u-x", Place: "another"}}
	if n.planSelectors(); len(n.Refused) == 0 {
		t.Errorf("stuck, with another selector: %q", n.Notes)
	}
}

// TestSelectorsOfAResetMachine: its partitions are there, and its other selectors count.
func TestSelectorsOfAResetMachine(t *testing.T) {
	t.Parallel()
	n := withSelector(cluster.InstallReset, selected(cluster.ForPartition, "u-x", "UserVolumeConfig x", "", false).DiskSelector)
	n.Found.Machine, n.Found.Blank = nil, &cluster.BlankMachine{Machine: cluster.Machine{Volumes: []cluster.Volume{{Disk: "sdb", Label: "u-x"}}}}
	n.planSelectors()
	must.Equal(t, "refused", 0, len(n.Refused))
	n.Found.Blank.Volumes = nil
	n.planSelectors()
	must.Equal(t, "refused", 1, len(n.Refused))
}
