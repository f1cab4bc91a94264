package kubeupgrade

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
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

// edit changes what was seen of a node.
func (s Seen) edit(name string, change func(*NodeSeen)) Seen {
	i := slices.IndexFunc(s.Nodes, func(n NodeSeen) bool { return n.Node.Name == name })
	change(&s.Nodes[i])
	return s
}

func image(name string, c cluster.Component, ref string) func(Seen) Seen {
	return func(s Seen) Seen {
		return s.edit(name, func(n *NodeSeen) { n.Machine.Images = n.Machine.Images.With(c, ref) })
	}
}

func kubelet(name, version string) func(Seen) Seen {
	return func(s Seen) Seen {
		return s.edit(name, func(n *NodeSeen) { n.Node.KubeletVersion = version })
	}
}

// planCase is a cluster at a version, and what is planned to bring it to another.
type planCase struct {
	from, to string
	seen     func(Seen) Seen
	changes  string // the image that one of the changes sets; "": there is none
	refused  []string
}

func as(s Seen) Seen { return s }

func (tc planCase) check(t *testing.T) {
	plan, err := NewPlan("c1", tc.to, tc.seen(seenAt(tc.from)))
	if err != nil || len(plan.Refused) != len(tc.refused) {
		t.Fatalf("%v, refused %q, want %q", err, plan.Refused, tc.refused)
	}
	for i, want := range tc.refused {
		must.Contain(t, "refusal", "\n"+plan.Refused[i], "\n"+want)
	}
	if len(tc.refused) == 0 && plan.Work() != (tc.changes != "") {
		t.Errorf("work: %+v", plan)
	}
	found := tc.changes == ""
	for _, n := range plan.Nodes {
		found = found || slices.ContainsFunc(n.Changes, func(c ImageChange) bool { return c.To == tc.changes })
	}
	if !found {
		t.Errorf("%s is not among %+v", tc.changes, plan.Nodes)
	}
	must.Equal(t, "first node", "cp1", plan.Nodes[0].Node)
}

func TestPlanKubernetes(t *testing.T) {
	t.Parallel()
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
		"back a patch":     {"v1.35.4", "v1.35.3", as, "", []string{"kube-apiserver of cp1, kube-controller-manager of cp1, kube-scheduler of cp1, kube-proxy of cp1 and 3 more: it is v1.35.4 already, and Kubernetes goes to no version before"}},
		"one is ahead":     {"v1.35.4", "v1.35.5", image("wk1", cluster.Kubelet, "ghcr.io/siderolabs/kubelet:v1.36.0"), "", []string{"kubelet of wk1: it is v1.36.0 already"}},
		"pinned by digest": {"v1.35.4", "v1.36.1", image("cp1", cluster.APIServer, "registry.k8s.io/kube-apiserver:v1.35.4@sha256:00"), "", []string{"kube-apiserver of cp1: image \"registry.k8s.io/kube-apiserver:v1.35.4@sha256:00\" is pinned by a digest"}},
		"no version":       {"v1.35.4", "v1.36.1", image("wk1", cluster.Kubelet, "reg.local/kubelet:latest"), "", []string{"kubelet of wk1: image \"reg.local/kubelet:latest\": its tag is no version"}},
		"no tag":           {"v1.35.4", "v1.36.1", image("wk1", cluster.Kubelet, "reg.local:5000/kubelet"), "", []string{"kubelet of wk1: image \"reg.local:5000/kubelet\" has no tag"}},
		"old kubelet":      {"v1.35.4", "v1.36.1", kubelet("wk1", "v1.32.9"), "", []string{"wk1: its kubelet is v1.32.9, more than 3 minor versions before v1.36.1, which its API servers would not serve: recast upgrade-k8s --to v1.35.4 brings it along first"}},
		"kubelet 3 behind": {"v1.35.4", "v1.36.1", kubelet("wk1", "v1.33.9"), "ghcr.io/siderolabs/kubelet:v1.36.1", nil},
		"Talos": {"v1.36.1", "v1.37.0", func(s Seen) Seen {
			return s.edit("wk1", func(n *NodeSeen) {
				n.Unsupported = "Talos v1.13.9 supports 1.31 to 1.36: roll to Talos v1.14 first"
			})
		}, "", []string{"wk1: Talos v1.13.9 supports 1.31 to 1.36: roll to Talos v1.14 first"}},
		"unread": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			return s.edit("wk1", func(n *NodeSeen) { n.Machine, n.Err = nil, errors.New("no answer") })
		}, "", []string{"wk1: it could not be read: no answer"}},
		"another machine": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			return s.edit("wk1", func(n *NodeSeen) { n.Machine.UUID = "other" })
		}, "", []string{"wk1: 10.0.0.31 answers with UUID other, and Kubernetes has uuid-wk1 for it"}},
		"in use": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			s.Removed, s.Owners, s.Open = []string{"cp1: flag x"}, []string{"tuppr"}, []string{"wk9"}
			return s
		}, "", []string{"cp1: flag x", "the cluster is managed by tuppr as well", "wk9: a roll has changed it and not finished"}},
		"another kube-proxy": {"v1.35.4", "v1.36.1", func(s Seen) Seen { s.Proxy.Image = "registry.k8s.io/kube-proxy:v1.37.0"; return s }, "", []string{"DaemonSet kube-proxy: it is v1.37.0 already"}},
	}, func(t *testing.T, tc planCase) {
		tc.check(t)
	})
}

// TestPlanKubernetesMachines: machines that must not be changed, and machines that are not seen.
func TestPlanKubernetesMachines(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]planCase{
		"a vendor's tag": {"v1.35.4", "v1.36.1", image("cp1", cluster.APIServer, "reg.local/kube-apiserver:v1.35.4-fips.1"), "", []string{
			"kube-apiserver of cp1: image \"reg.local/kube-apiserver:v1.35.4-fips.1\": \"fips.1\" in its tag is a vendor's own, and which one another version has is not known: upgrade Kubernetes with the tool of the vendor of these images",
		}},
		"a candidate": {"v1.36.0-rc.1", "v1.36.0", as, "registry.k8s.io/kube-apiserver:v1.36.0", nil},
		"staged": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			return s.edit("wk1", func(n *NodeSeen) { n.Machine.Pending = true })
		}, "", []string{"wk1: it has a configuration that is staged or tried"}},
		"staged, untouched": {"v1.35.4", "v1.35.4", func(s Seen) Seen {
			return s.edit("wk1", func(n *NodeSeen) { n.Machine.Pending = true })
		}, "", nil},
		"a control plane without a Node": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			s.Etcd = append(s.Etcd, cluster.EtcdMember{ID: 0xc2, Name: "cp2", Peers: []string{"https://10.0.0.12:2380"}})
			return s
		}, "", []string{"etcd member cp2: its machine is no control plane that Kubernetes shows"}},
		"a Node of another name": {"v1.35.4", "v1.36.1", func(s Seen) Seen { s.Etcd[0].Name = "cp1-host"; return s }, "registry.k8s.io/kube-apiserver:v1.36.1", nil},
		"etcd is down on it": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			s.Etcd[0].Name = "cp1-host"
			return s.edit("cp1", func(n *NodeSeen) { n.Member = 0 })
		}, "registry.k8s.io/kube-apiserver:v1.36.1", nil},
		"another machine of its name": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			return s.edit("cp1", func(n *NodeSeen) { n.Member = 0xdead })
		}, "", []string{"etcd member cp1: "}},
		"etcd is unknown": {"v1.35.4", "v1.36.1", func(s Seen) Seen {
			s.Etcd, s.EtcdErr = nil, errors.New("no answer")
			return s
		}, "", []string{"who the members of etcd are, and so which control planes there are, is not known: no answer"}},
	}, func(t *testing.T, tc planCase) {
		tc.check(t)
	})
}

func TestKubeVersionOrder(t *testing.T) {
	t.Parallel()
	ordered := []string{"v1.9.10", "v1.35.4", "v1.36.0-alpha.9", "v1.36.0-alpha.10", "v1.36.0-rc.0", "v1.36.0", "v1.36.1", "v2.0.0"}
	for i, a := range ordered {
		x, err := cluster.ParseVersion(a)
		if err != nil || x.String() != a {
			t.Fatalf("%s: %v, %v", a, x, err)
		}
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
	as := func(s Seen) Seen { return s }
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
