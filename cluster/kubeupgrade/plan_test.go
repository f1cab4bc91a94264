package kubeupgrade

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
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// seenAt is a cluster of one control plane and one worker that runs the given version.
func seenAt(version string) Seen {
	images := cluster.KubernetesImages{
		APIServer: "registry.k8s.io/kube-apiserver:" + version, ControllerManager: "registry.k8s.io/kube-controller-manager:" + version,
		Scheduler: "registry.k8s.io/kube-scheduler:" + version, KubeProxy: "registry.k8s.io/kube-proxy:" + version, Kubelet: "ghcr.io/siderolabs/kubelet:" + version,
	}
	node := func(name string, controlPlane bool, images cluster.KubernetesImages, last byte) NodeSeen {
		return NodeSeen{
			Node: cluster.KubeNode{Name: name, UUID: "uuid-" + name, ControlPlane: controlPlane, KubeletVersion: version, Ready: true}, Addr: netip.AddrFrom4([4]byte{10, 0, 0, last}),
			Machine: &cluster.MachineKubernetes{UUID: "uuid-" + name, TalosVersion: "v1.13.9", Images: images, KubeletHealthy: true},
		}
	}
	seen := Seen{
		Nodes: []NodeSeen{node("wk1", false, cluster.KubernetesImages{Kubelet: images.Kubelet}, 31), node("cp1", true, images, 11)},
		Etcd:  []cluster.EtcdMember{{ID: 0xc1, Name: "cp1", Peers: []string{"https://10.0.0.11:2380"}}},
		Proxy: &cluster.ProxySet{Image: images.KubeProxy, Seen: true},
	}
	for _, c := range cluster.StaticPods {
		seen.Pods = append(seen.Pods, cluster.StaticPod{Node: "cp1", Component: c, Image: images.Of(c), Revision: 1, Ready: true})
	}
	seen.Nodes[1].Serves, seen.Nodes[1].Member = version, 0xc1
	return seen
}

// of changes what was seen of a node.
func of(name string, change func(*NodeSeen)) func(Seen) Seen {
	return func(s Seen) Seen {
		i := slices.IndexFunc(s.Nodes, func(n NodeSeen) bool { return n.Node.Name == name })
		change(&s.Nodes[i])
		return s
	}
}

func image(name string, c cluster.Component, ref string) func(Seen) Seen {
	return of(name, func(n *NodeSeen) { n.Machine.Images = n.Machine.Images.With(c, ref) })
}

func kubelet(name, version string) func(Seen) Seen {
	return of(name, func(n *NodeSeen) { n.Node.KubeletVersion = version })
}

// planCase is a cluster at a version, and what is planned to bring it to another.
type planCase struct {
	from, to string
	seen     func(Seen) Seen
	changes  string // the image that one of the changes sets; "": there is none
	refused  []string
}

func as(s Seen) Seen { return s }

func checkPlan(t *testing.T, tc planCase) {
	plan, err := NewPlan("c1", tc.to, tc.seen(seenAt(tc.from)))
	must.Be(t, err == nil && len(plan.Refused) == len(tc.refused),
		"%v, refused %q, want %q", err, plan.Refused, tc.refused)
	for i, want := range tc.refused {
		must.Contain(t, "refusal", "\n"+plan.Refused[i], "\n"+want)
	}
	must.Hold(t, len(tc.refused) != 0 || plan.Work() == (tc.changes != ""), "work: %+v", plan)
	found := tc.changes == ""
	for _, n := range plan.Nodes {
		found = found || slices.ContainsFunc(n.Changes, func(c ImageChange) bool { return c.To == tc.changes })
	}
	must.Hold(t, found, "%s is not among %+v", tc.changes, plan.Nodes)
	must.Equal(t, "first node", "cp1", plan.Nodes[0].Node)
}

func TestPlanKubernetes(t *testing.T) {
	t.Parallel()
	staged := of("wk1", func(n *NodeSeen) { n.Machine.Pending = true })
	must.Each(t, map[string]planCase{
		"the next minor":       {"v1.35.4", "v1.36.1", as, "registry.k8s.io/kube-apiserver:v1.36.1", nil},
		"a patch":              {"v1.35.4", "v1.35.5", as, "ghcr.io/siderolabs/kubelet:v1.35.5", nil},
		"nothing":              {"v1.35.4", "v1.35.4", as, "", nil},
		"own registry":         {"v1.35.4", "v1.36.1", image("cp1", cluster.Scheduler, "reg.local:5000/k8s/kube-scheduler:v1.35.4"), "reg.local:5000/k8s/kube-scheduler:v1.36.1", nil},
		"variant of a kubelet": {"v1.35.4", "v1.36.1", image("wk1", cluster.Kubelet, "ghcr.io/siderolabs/kubelet:v1.35.4-fat"), "ghcr.io/siderolabs/kubelet:v1.36.1-fat", nil},
		"begun already":        {"v1.35.4", "v1.36.1", image("cp1", cluster.APIServer, "registry.k8s.io/kube-apiserver:v1.36.1"), "registry.k8s.io/kube-scheduler:v1.36.1", nil},
		"kubelet set, not up":  {"v1.35.4", "v1.35.4", kubelet("wk1", "v1.34.6"), "ghcr.io/siderolabs/kubelet:v1.35.4", nil},
		"two minors": {"v1.34.6", "v1.36.1", as, "", []string{
			"Kubernetes is upgraded one minor version at a time, and v1.34.6 → v1.36.1 skips v1.35 (cp1 runs v1.34.6): recast upgrade-k8s --to the newest v1.35 first",
		}},
		"back a patch":     {"v1.35.4", "v1.35.3", as, "", []string{"kube-apiserver of cp1, kube-controller-manager of cp1, kube-scheduler of cp1, kube-proxy of cp1 and 3 more: it is v1.35.4 already, and Kubernetes can't be downgraded"}},
		"one is ahead":     {"v1.35.4", "v1.35.5", image("wk1", cluster.Kubelet, "ghcr.io/siderolabs/kubelet:v1.36.0"), "", []string{"kubelet of wk1: it is v1.36.0 already"}},
		"pinned by digest": {"v1.35.4", "v1.36.1", image("cp1", cluster.APIServer, "registry.k8s.io/kube-apiserver:v1.35.4@sha256:00"), "", []string{"kube-apiserver of cp1: image \"registry.k8s.io/kube-apiserver:v1.35.4@sha256:00\" is pinned by a digest"}},
		"no version":       {"v1.35.4", "v1.36.1", image("wk1", cluster.Kubelet, "reg.local/kubelet:latest"), "", []string{"kubelet of wk1: image \"reg.local/kubelet:latest\": its tag is not a version"}},
		"no tag":           {"v1.35.4", "v1.36.1", image("wk1", cluster.Kubelet, "reg.local:5000/kubelet"), "", []string{"kubelet of wk1: image \"reg.local:5000/kubelet\" has no tag"}},
		"old kubelet":      {"v1.35.4", "v1.36.1", kubelet("wk1", "v1.32.9"), "", []string{"wk1: its kubelet is v1.32.9, more than 3 minor versions before v1.36.1, which its API servers would not serve: recast upgrade-k8s --to v1.35.4 brings it along first"}},
		"kubelet 3 behind": {"v1.35.4", "v1.36.1", kubelet("wk1", "v1.33.9"), "ghcr.io/siderolabs/kubelet:v1.36.1", nil},
		"Talos": {
			"v1.36.1", "v1.37.0", of("wk1", func(n *NodeSeen) { n.Unsupported = "Talos v1.13.9 is too old: roll first" }), "",
			[]string{"wk1: Talos v1.13.9 is too old: roll first"},
		},
		"unread": {
			"v1.35.4", "v1.36.1", of("wk1", func(n *NodeSeen) { n.Machine, n.Err = nil, errors.New("no answer") }), "",
			[]string{"wk1: it could not be read: no answer"},
		},
		"another machine": {
			"v1.35.4", "v1.36.1", of("wk1", func(n *NodeSeen) { n.Machine.UUID = "other" }), "",
			[]string{"wk1: 10.0.0.31 answers with UUID other, and Kubernetes has uuid-wk1 for it"},
		},
		"in use": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			s.Removed, s.Owners, s.Open = []string{"cp1: flag x"}, []string{"tuppr"}, []string{"wk9"}
			return s
		}, "", []string{"cp1: flag x", "the cluster is managed by tuppr as well", "wk9: a roll has changed it and not finished"}},
		"another kube-proxy": {"v1.35.4", "v1.36.1", func(s Seen) Seen { s.Proxy.Image = "registry.k8s.io/kube-proxy:v1.37.0"; return s }, "", []string{"DaemonSet kube-proxy: it is v1.37.0 already"}},
		"a vendor's tag": {"v1.35.4", "v1.36.1", image("cp1", cluster.APIServer, "reg.local/kube-apiserver:v1.35.4-fips.1"), "", []string{
			"kube-apiserver of cp1: image \"reg.local/kube-apiserver:v1.35.4-fips.1\": \"fips.1\" in its tag is the vendor's, and that of another version is not known: upgrade Kubernetes with the tool of the vendor of these images",
		}},
		"a candidate":       {"v1.36.0-rc.1", "v1.36.0", as, "registry.k8s.io/kube-apiserver:v1.36.0", nil},
		"staged":            {"v1.35.4", "v1.36.1", staged, "", []string{"wk1: it has a staged or a tried configuration"}},
		"staged, untouched": {"v1.35.4", "v1.35.4", staged, "", nil},
		"a control plane without a Node": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			s.Etcd = append(s.Etcd, cluster.EtcdMember{ID: 0xc2, Name: "cp2", Peers: []string{"https://10.0.0.12:2380"}})
			return s
		}, "", []string{"etcd member cp2: its machine is not a control plane that Kubernetes shows"}},
		"a Node of another name": {"v1.35.4", "v1.36.1", func(s Seen) Seen { s.Etcd[0].Name = "cp1-host"; return s }, "registry.k8s.io/kube-apiserver:v1.36.1", nil},
		"etcd is down on it": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			s.Etcd[0].Name = "cp1-host"
			return of("cp1", func(n *NodeSeen) { n.Member = 0 })(s)
		}, "registry.k8s.io/kube-apiserver:v1.36.1", nil},
		"another machine of its name": {"v1.35.4", "v1.36.1", of("cp1", func(n *NodeSeen) { n.Member = 0xdead }), "", []string{"etcd member cp1: "}},
		"etcd is unknown": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			s.Etcd, s.EtcdErr = nil, errors.New("no answer")
			return s
		}, "", []string{"the members of etcd, and so the control planes, are not known: no answer"}},
	}, checkPlan)
}

func TestKubeVersionOrder(t *testing.T) {
	t.Parallel()
	ordered := []string{"v1.9.10", "v1.35.4", "v1.36.0-alpha.9", "v1.36.0-alpha.10", "v1.36.0-rc.0", "v1.36.0", "v1.36.1", "v2.0.0"}
	for i, a := range ordered {
		x, err := cluster.ParseVersion(a)
		must.Be(t, err == nil && x.String() == a, "%s: %v, %v", a, x, err)
		for j, b := range ordered {
			y, _ := cluster.ParseVersion(b)
			must.Equal(t, a+" before "+b, i < j, x.Before(y))
		}
	}
	for _, bad := range []string{"", "latest", "v1.35", "1.35.4.2", "v1.x.0", "v1.35.4 "} {
		must.Equal(t, bad+" is a version", false, must.Err(cluster.ParseVersion(bad)) == nil)
	}
}

func TestCheckKubernetesVersion(t *testing.T) {
	t.Parallel()
	for s, ok := range map[string]bool{
		"v1.36.0": true, "1.36.0": true, "v1.36.0-rc.1": true, "v1.36.0-alpha.0": true,
		"v1.36.0-rc": false, "v1.36.0-fips.1": false, "v1.36.0-rc.1.2": false, "v1.36.0+k3s1": false, "v1.36.0-rc.1+k3s1": false, "next": false,
	} {
		must.Equal(t, s, ok, cluster.CheckKubernetesVersion(s) == nil)
	}
}

func TestRetag(t *testing.T) {
	t.Parallel()
	const like = "registry.k8s.io/kube-scheduler:v1.35.4"
	type row struct{ image, like, want string }
	must.Each(t, map[string]row{
		"none is named":        {"", like, like},
		"an older one":         {"mirror/kube-scheduler:v1.34.6", like, "mirror/kube-scheduler:v1.35.4"},
		"a newer one":          {"mirror/kube-scheduler:v1.36.0", like, "mirror/kube-scheduler:v1.35.4"},
		"the same, by digest":  {"mirror/kube-scheduler:v1.35.4@sha256:1", like, "mirror/kube-scheduler:v1.35.4@sha256:1"},
		"another, by digest":   {"mirror/kube-scheduler:v1.34.6@sha256:1", like, ""},
		"the very same digest": {"mirror/kube-scheduler@sha256:1", "mirror/kube-scheduler@sha256:1", "mirror/kube-scheduler@sha256:1"},
		"two digests":          {"mirror/kube-scheduler@sha256:1", "mirror/kube-scheduler@sha256:2", ""},
		"a vendor's, the same": {"mirror/kube-scheduler:v1.35.4-fips.1", "vendor/kube-scheduler:v1.35.4-fips.1", "mirror/kube-scheduler:v1.35.4-fips.1"},
		"a vendor's next":      {"mirror/kube-scheduler:v1.35.4-fips.1", "mirror/kube-scheduler:v1.35.4-fips.2", "mirror/kube-scheduler:v1.35.4-fips.2"},
		"a vendor's elsewhere": {"mirror/kube-scheduler:v1.34.6-fips.1", like, ""},
		"a variant":            {"mirror/kubelet:v1.34.6-fat", "mirror/kubelet:v1.35.4", "mirror/kubelet:v1.35.4-fat"},
		"no letter":            {"mirror/kube-scheduler:1.34.6", like, "mirror/kube-scheduler:1.35.4"},
	}, func(t *testing.T, tc row) {
		got, err := cluster.Retag(tc.image, tc.like)
		must.Equal(t, "image, error", []any{tc.want, tc.want == ""}, []any{got, err != nil})
	})
}

// stubborn has a configuration of cp2 that accepts no scheduler, and a kubelet of cp3 whose
// certificate awaits approval.
type stubborn struct {
	cluster.MachineReader
	cluster.Maintenance
	cluster.KubeReader
}

func (stubborn) MachineConfig(_ context.Context, addr netip.Addr) (cluster.Secret, error) {
	return cluster.Secret(addr.String()), nil
}

func (stubborn) PatchConfig(config cluster.Secret, p cluster.ConfigPatch) (cluster.Secret, error) {
	if string(config) == planeAddrs[1].String() && p.Kubernetes.Scheduler != "" {
		return nil, fault.WithHint(errors.New("two documents"), "take one out")
	}
	return config, nil
}

func (stubborn) PendingCertificates(_ context.Context, node string) ([]string, error) {
	if node == "cp3" {
		return []string{"csr-1"}, nil
	}
	return nil, nil
}

// TestForesee: what would stop the plan halfway is listed for all nodes at once, with hints.
func TestForesee(t *testing.T) {
	t.Parallel()
	plan := Plan{To: "v1.36.1"}
	for i, name := range []string{"cp1", "cp2", "cp3"} {
		n := Node{Node: name, Addr: planeAddrs[i], Talos: "v1.13.9"}
		for _, c := range cluster.Components {
			n.Changes = append(n.Changes, ImageChange{c, imagesAt("v1.35.4").Of(c), imagesAt("v1.36.1").Of(c)})
		}
		plan.Nodes = append(plan.Nodes, n)
	}
	got, err := plan.Foresee(t.Context(), stubborn{}, stubborn{}, stubborn{})
	want := []string{
		"machine configuration of cp2: two documents: take one out",
		"cp3: certificate requests of its kubelet wait for approval, and its next one would: kubectl certificate approve csr-1, or have kubelet-serving-cert-approver do it",
	}
	must.Do(t, err)
	must.Equal(t, "got", want, got)
}

// TestRequireSame: a plan may only shrink.
func TestRequireSame(t *testing.T) {
	t.Parallel()
	change := func(c cluster.Component, from string) ImageChange {
		return ImageChange{c, imagesAt(from).Of(c), imagesAt("v1.36.1").Of(c)}
	}
	shown := func() Plan {
		proxy := change(cluster.KubeProxy, "v1.35.4")
		return Plan{From: "v1.35.4", To: "v1.36.1", Proxy: &proxy, Nodes: []Node{
			{Node: "cp1", UUID: "uuid-1", Addr: planeAddrs[0], Talos: "v1.13.9", Changes: []ImageChange{change(cluster.APIServer, "v1.35.4"), change(cluster.Kubelet, "v1.35.4")}},
			{Node: "wk1", UUID: "uuid-2", Addr: planeAddrs[1], Talos: "v1.13.9", Changes: []ImageChange{change(cluster.Kubelet, "v1.35.4")}},
		}}
	}
	type row struct {
		now  func(p *Plan)
		want string // "": it is the same
	}
	must.Each(t, map[string]row{
		"the same":              {now: func(*Plan) {}},
		"some of it got done":   {now: func(p *Plan) { p.From, p.Proxy, p.Nodes[0].Changes = "v1.36.1", nil, p.Nodes[0].Changes[1:] }},
		"set, but not seen yet": {now: func(p *Plan) { p.Nodes[1].Changes = []ImageChange{change(cluster.Kubelet, "v1.36.1")} }},
		"a node has joined":     {func(p *Plan) { p.Nodes = append(p.Nodes, Node{Node: "wk2"}) }, "wk2 has joined"},
		"a node is gone":        {func(p *Plan) { p.Nodes = p.Nodes[:1] }, "wk1 is gone"},
		"a node was recreated":  {func(p *Plan) { p.Nodes[1].UUID = "uuid-9" }, "wk1 is another machine"},
		"Talos was rolled":      {func(p *Plan) { p.Nodes[1].Talos = "v1.14.1" }, "wk1 runs Talos v1.14.1"},
		"a downgraded kubelet":  {func(p *Plan) { p.Nodes[1].Changes[0] = change(cluster.Kubelet, "v1.34.1") }, "kubelet of wk1 is to run registry.k8s.io/kubelet:v1.34.1"},
		"another DaemonSet":     {func(p *Plan) { p.Proxy.From = "mine:v1.35.4" }, "the image of DaemonSet kube-proxy is mine:v1.35.4"},
		"it is refused by now":  {func(p *Plan) { p.Refused = []string{"a roll has changed it"} }, "a roll has changed it"},
	}, func(t *testing.T, c row) {
		p := shown()
		c.now(&p)
		err := p.RequireSame(shown())
		must.Fail(t, err, c.want)
		must.Equal(t, "refused", c.want != "", fault.KindOf(err) == fault.Refused)
	})
}

// removals records what is asked for, version by version.
type removals struct {
	cluster.MachineReader
	cluster.KubeReader
	asked []string
}

func (r *removals) RemovedFlags(_ context.Context, addr netip.Addr, _ bool, from, to string) ([]string, error) {
	r.asked = append(r.asked, addr.String()+" "+from+"→"+to)
	return nil, nil
}

func (r *removals) RemovedObjects(_ context.Context, from, to string) ([]string, error) {
	r.asked = append(r.asked, "objects "+from+"→"+to)
	return nil, nil
}

// TestRemovedStepByStep: each node is asked from its oldest version on, one minor version at a
// time, whatever is already upgraded.
func TestRemovedStepByStep(t *testing.T) {
	t.Parallel()
	type row struct {
		from string
		seen func(Seen) Seen
		want string
	}
	must.Each(t, map[string]row{
		"a minor":       {"v1.35.4", as, "10.0.0.11 v1.35.4→v1.36.1, 10.0.0.31 v1.35.4→v1.36.1, objects v1.35.4→v1.36.1"},
		"a patch":       {"v1.36.0", as, ""},
		"an old one":    {"v1.35.4", kubelet("wk1", "v1.33.9"), "10.0.0.11 v1.35.4→v1.36.1, 10.0.0.31 v1.33.9→v1.34.0, 10.0.0.31 v1.34.0→v1.35.0, 10.0.0.31 v1.35.0→v1.36.1, objects v1.33.9→v1.34.0, objects v1.34.0→v1.35.0, objects v1.35.0→v1.36.1"},
		"only kubelets": {"v1.36.1", kubelet("wk1", "v1.35.4"), "10.0.0.31 v1.35.4→v1.36.1, objects v1.35.4→v1.36.1"},
		"too old":       {"v1.35.4", kubelet("wk1", "v1.30.1"), "10.0.0.11 v1.35.4→v1.36.1, objects v1.35.4→v1.36.1"},
		"two minors":    {"v1.34.6", as, ""},
	}, func(t *testing.T, tc row) {
		r := &removals{}
		wanted, _ := cluster.ParseVersion("v1.36.1")
		out, err := removed(t.Context(), r, r, tc.seen(seenAt(tc.from)), wanted)
		must.Equal(t, "asked", []any{tc.want, nil, 0}, []any{strings.Join(r.asked, ", "), err, len(out)})
	})
}

// TestToPull: pods of kube-proxy run on every node, whatever its configuration names.
func TestToPull(t *testing.T) {
	t.Parallel()
	kubelet, proxy := ImageChange{cluster.Kubelet, "k:v1", "k:v2"}, ImageChange{cluster.KubeProxy, "p:v1", "p:v2"}
	n := Node{Changes: []ImageChange{kubelet, proxy}}
	must.Equal(t, "got", []ImageChange{kubelet}, Plan{}.toPull(n))
	must.Equal(t, "got", []ImageChange{kubelet, proxy}, Plan{Proxy: &proxy}.toPull(n))
}

// planeAddrs are the addresses of the control planes of threePlanes.
var planeAddrs = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")}

// threePlanes is a cluster of control planes cp1 to cp3 that all run v1.36.1 until a test changes
// it. It is Talos and Kubernetes at once.
type threePlanes struct {
	cluster.Talos
	cluster.Kube
	machines map[netip.Addr]cluster.MachineKubernetes
	nodes    []cluster.KubeNode
	nodesErr error
	pods     []cluster.StaticPod
	podsErr  error
	servers  map[netip.Addr]error // why an API server does not serve
	members  []cluster.EtcdMember
	etcdErr  error
	etcd     cluster.EtcdStatus // of each member, but its ID
	sets     []string           // images that were set
	at       time.Time
	happens  func() // at that time
}

// after schedules a change, which is made before the first request after d.
func (p *threePlanes) after(d time.Duration, happens func()) {
	p.at, p.happens = time.Now().Add(d), happens
}

func (p *threePlanes) tick() {
	if p.happens != nil && !time.Now().Before(p.at) {
		p.happens()
		p.happens = nil
	}
}

func newThreePlanes() *threePlanes {
	p := &threePlanes{
		machines: map[netip.Addr]cluster.MachineKubernetes{}, servers: map[netip.Addr]error{},
		etcd: cluster.EtcdStatus{Leader: 1, Version: "3.6.4"},
	}
	images := imagesAt("v1.36.1")
	for i, addr := range planeAddrs {
		name, uuid := fmt.Sprintf("cp%d", i+1), fmt.Sprintf("uuid-%d", i+1)
		p.machines[addr] = cluster.MachineKubernetes{UUID: uuid, TalosVersion: "v1.13.9", BootID: "boot", Images: images, KubeletHealthy: true, APIPort: 6443}
		p.nodes = append(p.nodes, cluster.KubeNode{Name: name, UUID: uuid, BootID: "boot", Ready: true, ControlPlane: true, KubeletVersion: "v1.36.1", Addresses: []netip.Addr{addr}})
		for _, c := range cluster.StaticPods {
			p.pods = append(p.pods, cluster.StaticPod{Node: name, Component: c, Image: images.Of(c), Ready: true})
		}
		p.members = append(p.members, cluster.EtcdMember{ID: uint64(i + 1), Name: name, Peers: []string{"https://" + addr.String() + ":2380"}})
	}
	return p
}

func (p *threePlanes) change(addr netip.Addr, change func(*cluster.MachineKubernetes)) {
	m := p.machines[addr]
	change(&m)
	p.machines[addr] = m
}

func imagesAt(version string) (images cluster.KubernetesImages) {
	for _, c := range cluster.Components {
		images = images.With(c, "registry.k8s.io/"+string(c)+":"+version)
	}
	return images
}

func (p *threePlanes) Kubernetes(_ context.Context, addr netip.Addr) (cluster.MachineKubernetes, error) {
	p.tick()
	m, found := p.machines[addr]
	if !found {
		return m, errors.New(addr.String() + " is silent")
	}
	return m, nil
}

func (p *threePlanes) EtcdMembers(context.Context, netip.Addr) ([]cluster.EtcdMember, error) {
	return p.members, p.etcdErr
}

func (p *threePlanes) EtcdStatus(_ context.Context, addr netip.Addr) (cluster.EtcdStatus, error) {
	for _, m := range p.members {
		if at, err := m.Address(nil); err == nil && at == addr {
			status := p.etcd
			status.MemberID = m.ID
			return status, nil
		}
	}
	return cluster.EtcdStatus{}, errors.New(addr.String() + " is silent")
}

func (p *threePlanes) Nodes(context.Context) ([]cluster.KubeNode, error) { return p.nodes, p.nodesErr }

func (p *threePlanes) Node(_ context.Context, name string) (cluster.KubeNode, error) {
	i := slices.IndexFunc(p.nodes, func(k cluster.KubeNode) bool { return k.Name == name })
	if i < 0 {
		return cluster.KubeNode{}, cluster.ErrNotFound
	}
	return p.nodes[i], nil
}

func (p *threePlanes) StaticPods(context.Context) ([]cluster.StaticPod, error) {
	p.tick()
	return p.pods, p.podsErr
}

func (p *threePlanes) ProxySet(context.Context) (cluster.ProxySet, error) {
	return cluster.ProxySet{}, nil
}

func (p *threePlanes) PendingCertificates(context.Context, string) ([]string, error) { return nil, nil }

func (p *threePlanes) APIServer(_ context.Context, addr netip.AddrPort) (string, error) {
	return "v1.36.1", p.servers[addr.Addr()]
}

func (p *threePlanes) SetProxyImage(_ context.Context, _, to string) error {
	p.sets = append(p.sets, to)
	return nil
}

func (p *threePlanes) pod(node string, c cluster.Component) *cluster.StaticPod {
	i := slices.IndexFunc(p.pods, func(s cluster.StaticPod) bool { return s.Node == node && s.Component == c })
	return &p.pods[i]
}

// talosOf and kubeOf separate the two where both have a method of the same name.
type (
	talosOf struct{ *threePlanes }
	kubeOf  struct{ *threePlanes }
)

func (p *threePlanes) upgrade() *Upgrade {
	plan := Plan{From: "v1.35.4", To: "v1.36.1"}
	for i, k := range p.nodes[:3] {
		plan.Nodes = append(plan.Nodes, Node{Node: k.Name, Role: cluster.ControlPlane, UUID: k.UUID, Addr: planeAddrs[i], images: imagesAt("v1.35.4")})
	}
	return &Upgrade{
		Talos: talosOf{p}, Kube: kubeOf{p}, Plan: plan, Say: func(string, string) {},
		Timing: cluster.Timing{Poll: 5 * time.Second, Settle: 30 * time.Second, Join: 10 * time.Minute},
	}
}

// TestRequireOthers: while anything else is down, nothing is restarted, on any node.
func TestRequireOthers(t *testing.T) {
	t.Parallel()
	unplanned := netip.MustParseAddr("127.0.0.9")
	type row struct {
		wrong  func(p *threePlanes)
		except spotOf
		want   string // "": it goes on
	}
	must.Each(t, map[string]row{
		"all is well":                           {wrong: func(*threePlanes) {}},
		"the component itself is down":          {func(p *threePlanes) { p.pod("cp1", cluster.Scheduler).Ready = false }, spotOf{"cp1", cluster.Scheduler}, ""},
		"another component of its node is":      {func(p *threePlanes) { p.pod("cp1", cluster.Scheduler).Ready = false }, spotOf{"cp1", cluster.APIServer}, "the kube-scheduler of cp1 is not Ready"},
		"the same component of another node is": {func(p *threePlanes) { p.pod("cp2", cluster.Scheduler).Ready = false }, spotOf{"cp1", cluster.Scheduler}, "the kube-scheduler of cp2 is not Ready"},
		"a pod is not shown":                    {func(p *threePlanes) { p.pods = p.pods[1:] }, spotOf{}, "does not show the pod of the kube-apiserver of cp1"},
		"its own node, without its kubelet":     {func(p *threePlanes) { p.nodes[0].Ready = false }, spotOf{"cp1", cluster.Kubelet}, ""},
		"its own node is down otherwise":        {func(p *threePlanes) { p.nodes[0].Ready = false }, spotOf{"cp1", cluster.Scheduler}, "node cp1 is not Ready"},
		"an API server runs and is not ready":   {func(p *threePlanes) { p.servers[planeAddrs[1]] = errors.New("not ready: etcd") }, spotOf{"cp1", cluster.Kubelet}, "the API server of cp2 does not serve at its own address: not ready: etcd"},
		"the API server of its own node":        {func(p *threePlanes) { p.servers[planeAddrs[0]] = errors.New("not ready") }, spotOf{"cp1", cluster.Kubelet}, "the API server of cp1 does not serve"},
		"an unplanned control plane": {func(p *threePlanes) {
			p.nodes = append(p.nodes, cluster.KubeNode{Name: "cp4", UUID: "uuid-4", Ready: true, ControlPlane: true})
		}, spotOf{}, "control plane cp4 was not there when this was planned"},
		"a control plane that is another machine": {func(p *threePlanes) { p.nodes[2].UUID = "uuid-9" }, spotOf{}, "control plane cp3 was not there"},
		"an etcd member that has no Node": {func(p *threePlanes) {
			p.members = append(p.members, cluster.EtcdMember{ID: 9, Name: "cp9", Peers: []string{"https://127.0.0.9:2380"}})
			p.machines[unplanned] = cluster.MachineKubernetes{UUID: "uuid-9"}
		}, spotOf{"cp1", cluster.Kubelet}, "etcd member cp9 is not a control plane of the plan"},
		"a member whose machine does not answer": {func(p *threePlanes) {
			p.members = append(p.members, cluster.EtcdMember{ID: 9, Name: "cp9", Peers: []string{"https://127.0.0.9:2380"}})
		}, spotOf{}, "is not a control plane of the plan: 127.0.0.9 is silent"},
		"etcd has no leader":                    {func(p *threePlanes) { p.etcd.Leader = 0 }, spotOf{}, "etcd is not healthy"},
		"etcd lists no members":                 {func(p *threePlanes) { p.etcdErr = cluster.ErrNotNow }, spotOf{}, "no control plane says who the members of etcd are"},
		"the Nodes are not read":                {func(p *threePlanes) { p.nodesErr = cluster.ErrNotNow }, spotOf{}, "list Kubernetes nodes"},
		"the pods are not read":                 {func(p *threePlanes) { p.podsErr = cluster.ErrNotNow }, spotOf{}, "list the pods"},
		"a member whose Node has a longer name": {func(p *threePlanes) { p.members[1].Name = "cp2-short" }, spotOf{}, ""},
	}, func(t *testing.T, c row) {
		p := newThreePlanes()
		u := p.upgrade()
		c.wrong(p)
		clustertest.CheckErr(t, u.requireOthers(t.Context(), c.except), c.want, "list ")
	})
	p := newThreePlanes()
	p.servers[planeAddrs[2]] = fault.WithHint(errors.New("no route"), "reach port 6443") // can't be reached from here
	hints := fault.Hints(p.upgrade().requireOthers(t.Context(), spotOf{}))
	must.Contain(t, "hints", "\n"+strings.Join(hints, "\n")+"\n", "\nreach port 6443\n")
	// Though etcd does not count as healthy with such a member:
	err := newThreePlanes().upgrade().requireMember(t.Context(), cluster.EtcdMember{ID: 9, Name: "cp9"}, nil)
	must.Fail(t, err, "no address in its peer URLs")
}

// TestCheckAsksForTheOthers: nothing is begun either while something is down.
func TestCheckAsksForTheOthers(t *testing.T) {
	t.Parallel()
	p := newThreePlanes()
	for _, addr := range planeAddrs {
		p.change(addr, func(m *cluster.MachineKubernetes) { m.Images = imagesAt("v1.35.4") })
	}
	p.pod("cp2", cluster.Scheduler).Ready = false
	clustertest.CheckErr(t, p.upgrade().check(t.Context()), "the kube-scheduler of cp2 is not Ready")
}

// TestAwaitOthers: a component that recovers is waited for; one that does not is refused.
func TestAwaitOthers(t *testing.T) {
	t.Parallel()
	must.Bubbles(t, map[string]bool{"it comes back": true, "it does not": false}, func(t *testing.T, back bool) {
		p := newThreePlanes()
		p.pod("cp1", cluster.ControllerManager).Ready = false // it lost its API server, and restarts
		if back {
			p.after(time.Minute, func() { p.pod("cp1", cluster.ControllerManager).Ready = true })
		}
		err := p.upgrade().awaitOthers(t.Context(), "x", spotOf{"cp1", cluster.Scheduler})
		must.Hold(t, back == (err == nil) && (back || fault.KindOf(err) == fault.Refused && len(fault.Hints(err)) != 0),
			"err = %v, hints %q", err, fault.Hints(err))
	})
}

// TestSetAsksTwice: a configuration that was staged during the wait for the others does not go live.
func TestSetAsksTwice(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newThreePlanes()
		p.change(planeAddrs[0], func(m *cluster.MachineKubernetes) { m.Images = imagesAt("v1.35.4") })
		p.pod("cp2", cluster.Scheduler).Ready = false
		p.after(time.Minute, func() {
			p.pod("cp2", cluster.Scheduler).Ready = true
			p.change(planeAddrs[0], func(m *cluster.MachineKubernetes) { m.Pending = true })
		})
		u := p.upgrade()
		k := kubernetesStep{Upgrade: u, n: u.Plan.find("cp1"), c: cluster.Scheduler, path: "x"}
		must.FailAs(t, must.Err(k.set(t.Context())), fault.Refused, "cp1: it has a staged or a tried configuration")
	})
}

// TestSettle: of the errors while a component starts, only the hopeless ones end the wait.
func TestSettle(t *testing.T) {
	t.Parallel()
	type row struct {
		wrong func(p *threePlanes)
		want  string
		took  time.Duration // at most
	}
	cases := map[string]row{
		"a fresh API server knows no rights yet": {func(p *threePlanes) {
			p.podsErr = fault.Refusedf("pods is forbidden")
			p.after(20*time.Second, func() { p.podsErr = nil })
		}, "", time.Minute},
		"it is never ready to serve": {func(p *threePlanes) { p.servers[planeAddrs[0]] = errors.New("127.0.0.1:6443 is not ready: etcd") }, "is not ready: etcd", 11 * time.Minute},
		"another machine answers": {func(p *threePlanes) {
			p.change(planeAddrs[0], func(m *cluster.MachineKubernetes) { m.UUID = "uuid-9" })
		}, "127.0.0.1 answers with UUID uuid-9, not uuid-1", 0},
		"the claim is lost": {func(p *threePlanes) {
			p.podsErr = &cluster.UnprovenError{Err: fault.As(fault.Claimed, errors.New("lost"))}
		}, "lost", 0},
	}
	must.Bubbles(t, cases, func(t *testing.T, c row) {
		p, start := newThreePlanes(), time.Now()
		u := p.upgrade()
		c.wrong(p)
		must.Fail(t, u.settle(t.Context(), "x", []spotOf{{"cp1", cluster.APIServer}}), c.want)
		must.Take(t, start, 0, c.took)
	})
}

// TestLacksKubelet: the static pods of its node must also be up again.
func TestLacksKubelet(t *testing.T) {
	t.Parallel()
	p := newThreePlanes()
	u := p.upgrade()
	lacks := func(node string) string { return must.Get(u.lacks(t.Context(), u.Plan.find(node), cluster.Kubelet))(t) }
	must.Equal(t, "cp1 lacks", "", lacks("cp1"))
	p.pod("cp1", cluster.ControllerManager).Ready, p.pod("cp1", cluster.ControllerManager).Why = false, "CrashLoopBackOff"
	must.Equal(t, "cp1 lacks", "its kube-controller-manager: its pod is not Ready: CrashLoopBackOff", lacks("cp1"))
	must.Equal(t, "cp2 lacks", "", lacks("cp2"))
}

// TestProxyNeedsHealth: its pods are not replaced while something is down.
func TestProxyNeedsHealth(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newThreePlanes()
		p.pod("cp2", cluster.Scheduler).Ready = false
		u := p.upgrade()
		u.Plan.Proxy = &ImageChange{cluster.KubeProxy, "a:v1.35.4", "a:v1.36.1"}
		must.FailAs(t, u.rollOutProxy(t.Context()), fault.Refused)
		must.Equal(t, "sets", 0, len(p.sets))
	})
}

// TestProxyRollOut waits as long as something moves, and no longer.
func TestProxyRollOut(t *testing.T) {
	t.Parallel()
	const to = "kube-proxy:v1.36.1"
	at := func(updated, available int) cluster.ProxySet {
		return cluster.ProxySet{Image: to, Seen: true, Wanted: 3, Updated: updated, Available: available}
	}
	away := errors.New("no answer")
	type row struct {
		looks []cluster.ProxySet
		err   error // of every look after those
		want  string
		after time.Duration
	}
	cases := map[string]row{
		"slowly":                     {looks: []cluster.ProxySet{at(1, 0), at(1, 1), at(2, 1), at(2, 2), at(3, 2), at(3, 3)}, after: 40 * time.Minute},
		"one does not start":         {looks: []cluster.ProxySet{at(1, 0)}, want: "nothing has moved for 10m0s: 1 of 3 pods are updated, 0 available", after: 16 * time.Minute},
		"the API is away for good":   {looks: []cluster.ProxySet{at(1, 1)}, err: away, want: "nothing has moved for 10m0s: no answer", after: 16 * time.Minute},
		"it is deleted":              {looks: []cluster.ProxySet{at(1, 1)}, err: fmt.Errorf("%w: x", cluster.ErrNotFound), want: "someone has deleted it", after: 8 * time.Minute},
		"someone sets another image": {looks: []cluster.ProxySet{at(1, 1), {Image: "other:v1", Seen: true, Wanted: 3}}, want: "someone has set its image to other:v1", after: 8 * time.Minute},
	}
	must.Bubbles(t, cases, func(t *testing.T, c row) {
		start := time.Now()
		r := proxyRollOut{image: to, patience: 10 * time.Minute, moved: start}
		for i := 0; ; i++ {
			set, err := c.looks[min(i, len(c.looks)-1)], error(nil)
			if i >= len(c.looks) {
				err = c.err
			}
			done, _, err := r.look(set, err)
			if done || err != nil {
				must.Fail(t, err, c.want)
				must.Take(t, start, 0, c.after)
				return
			}
			must.Be(t, time.Since(start) <= time.Hour, "it waits for ever")
			time.Sleep(5 * time.Minute)
		}
	})
}

// TestPlanKubernetesLacks: a component that should run in the wanted version and does not is
// work, but nothing is changed.
func TestPlanKubernetesLacks(t *testing.T) {
	t.Parallel()
	pod := func(change func(*cluster.StaticPod)) func(Seen) Seen {
		return func(s Seen) Seen { change(&s.Pods[2]); return s } // the scheduler's
	}
	type row struct {
		seen func(Seen) Seen
		node int // cp1, wk1
		want string
	}
	must.Each(t, map[string]row{
		"nothing":         {as, 0, ""},
		"no pod":          {func(s Seen) Seen { s.Pods = s.Pods[:2]; return s }, 0, "kube-scheduler: Kubernetes does not show its pod"},
		"an old pod":      {pod(func(p *cluster.StaticPod) { p.Image = "registry.k8s.io/kube-scheduler:v1.34.6" }), 0, "kube-scheduler: its pod still is the old one: registry.k8s.io/kube-scheduler:v1.34.6, of revision 1"},
		"an old revision": {of("cp1", func(n *NodeSeen) { n.Machine.Revisions = map[cluster.Component]uint64{cluster.Scheduler: 2} }), 0, "kube-scheduler: its pod still is the old one: registry.k8s.io/kube-scheduler:v1.35.4, of revision 1"},
		"it loops":        {pod(func(p *cluster.StaticPod) { p.Ready, p.Why = false, "CrashLoopBackOff" }), 0, "kube-scheduler: its pod is not Ready: CrashLoopBackOff"},
		"a silent server": {of("cp1", func(n *NodeSeen) { n.ServesErr = errors.New("no answer") }), 0, "kube-apiserver: no answer"},
		"an old server":   {of("cp1", func(n *NodeSeen) { n.Serves = "v1.34.6" }), 0, "kube-apiserver: it answers as v1.34.6"},
		"not Ready":       {of("wk1", func(n *NodeSeen) { n.Node.Ready = false }), 1, "kubelet: its node is not Ready"},
		"a kubelet":       {of("wk1", func(n *NodeSeen) { n.Machine.KubeletHealthy = false }), 1, "kubelet: Talos' service kubelet is not healthy"},
	}, func(t *testing.T, tc row) {
		plan, err := NewPlan("c1", "v1.35.4", tc.seen(seenAt("v1.35.4")))
		must.Be(t, err == nil && len(plan.Refused) == 0, "%v, refused %q", err, plan.Refused)
		got := strings.Join(plan.Nodes[tc.node].Lacks, "; ")
		must.Equal(t, "lacks", []any{tc.want, tc.want != "", 0}, []any{got, plan.Work(), len(plan.Nodes[tc.node].Changes)})
	})
}

// A DaemonSet with the new image but not yet the pods is waited for.
func TestPlanKubernetesProxyHalfDone(t *testing.T) {
	t.Parallel()
	seen := seenAt("v1.35.4")
	seen.Proxy.Wanted, seen.Proxy.Updated, seen.Proxy.Available = 2, 1, 2
	plan, err := NewPlan("c1", "v1.35.4", seen)
	must.Hold(t, err == nil && plan.Work() && plan.Proxy != nil && plan.Proxy.To == seen.Proxy.Image, "%+v, %v", plan, err)
}

// TestPlanKubernetesLeftOver: the named command leaves the repositories unchanged.
func TestPlanKubernetesLeftOver(t *testing.T) {
	t.Parallel()
	const command = "talosctl -n 10.0.0.11 upgrade-k8s --to 1.36.1"
	type row struct {
		seen func(Seen) Seen
		want string
	}
	must.Each(t, map[string]row{
		"standard": {as, command + " --with-docs=false --with-examples=false --dry-run shows"},
		"own": {
			image("cp1", cluster.Scheduler, "reg.local:5000/k8s/kube-scheduler:v1.35.4"),
			command + " --scheduler-image=reg.local:5000/k8s/kube-scheduler --with-docs=false --with-examples=false --dry-run shows",
		},
		"variant":   {image("cp1", cluster.Kubelet, "ghcr.io/siderolabs/kubelet:v1.35.4-fat"), command + " --with-docs=false"},
		"different": {image("wk1", cluster.Kubelet, "reg.local/kubelet:v1.35.4"), "nodes run kubelet from different repositories"},
		"no letter": {image("cp1", cluster.KubeProxy, "registry.k8s.io/kube-proxy:1.35.4"), "talosctl upgrade-k8s would give kube-proxy of cp1 another image than registry.k8s.io/kube-proxy:1.35.4"},
		"digest":    {image("cp1", cluster.APIServer, "registry.k8s.io/kube-apiserver:v1.36.1@sha256:00"), "talosctl upgrade-k8s would give kube-apiserver of cp1 another image"},
	}, func(t *testing.T, tc row) {
		plan, err := NewPlan("c1", "v1.36.1", tc.seen(seenAt("v1.35.4")))
		must.Hold(t, err == nil && strings.Contains(plan.LeftOver, tc.want) && len(plan.Refused) == 0,
			"%v, %q, %q, want %q", err, plan.Refused, plan.LeftOver, tc.want)
		must.Hold(t, strings.Contains(tc.want, "--to") == strings.Contains(plan.LeftOver, "--to"), "%q", plan.LeftOver)
	})
	seen := seenAt("v1.35.4")
	seen.Proxy.Image = "registry.k8s.io/kube-proxy:v1.31.0"
	plan, _ := NewPlan("c1", "v1.36.1", image("cp1", cluster.KubeProxy, "reg.local/kube-proxy:v1.35.4")(seen))
	if len(plan.Refused) != 1 || !strings.Contains(plan.Refused[0], "upgrade-k8s --to 1.35.4 --proxy-image=reg.local/kube-proxy --with-docs=false") {
		t.Errorf("refused %q", plan.Refused)
	}
}
