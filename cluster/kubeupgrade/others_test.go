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
		}, spotOf{"cp1", cluster.Kubelet}, "etcd member cp9 is no control plane of the plan"},
		"a member whose machine does not answer": {func(p *threePlanes) {
			p.members = append(p.members, cluster.EtcdMember{ID: 9, Name: "cp9", Peers: []string{"https://127.0.0.9:2380"}})
		}, spotOf{}, "is no control plane of the plan: 127.0.0.9 is silent"},
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
}

// TestRequireMemberNeedsAnAddress, though etcd does not count as healthy with such a member.
func TestRequireMemberNeedsAnAddress(t *testing.T) {
	t.Parallel()
	err := newThreePlanes().upgrade().requireMember(t.Context(), cluster.EtcdMember{ID: 9, Name: "cp9"}, nil)
	must.Fail(t, err, "no address in its peer URLs")
}

// TestCheckAsksForTheOthers: nothing is begun either while something is down.
func TestCheckAsksForTheOthers(t *testing.T) {
	t.Parallel()
	p := newThreePlanes()
	for addr, m := range p.machines {
		m.Images = imagesAt("v1.35.4")
		p.machines[addr] = m
	}
	p.pod("cp2", cluster.Scheduler).Ready = false
	clustertest.CheckErr(t, p.upgrade().check(t.Context()), "the kube-scheduler of cp2 is not Ready")
}

// TestRequireOthersKeepsTheHint of an API server that can't be reached from here.
func TestRequireOthersKeepsTheHint(t *testing.T) {
	t.Parallel()
	p := newThreePlanes()
	p.servers[planeAddrs[2]] = fault.WithHint(errors.New("no route"), "reach port 6443")
	hints := fault.Hints(p.upgrade().requireOthers(t.Context(), spotOf{}))
	must.Contain(t, "hints", "\n"+strings.Join(hints, "\n")+"\n", "\nreach port 6443\n")
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
		if back != (err == nil) || !back && (fault.KindOf(err) != fault.Refused || len(fault.Hints(err)) == 0) {
			t.Errorf("err = %v, hints %q", err, fault.Hints(err))
		}
	})
}

// TestSetAsksTwice: a configuration that was staged during the wait for the others does not go live.
func TestSetAsksTwice(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p := newThreePlanes()
		m := p.machines[planeAddrs[0]]
		m.Images = imagesAt("v1.35.4")
		p.machines[planeAddrs[0]] = m
		p.pod("cp2", cluster.Scheduler).Ready = false
		p.after(time.Minute, func() {
			p.pod("cp2", cluster.Scheduler).Ready = true
			m.Pending = true
			p.machines[planeAddrs[0]] = m
		})
		u := p.upgrade()
		k := kubernetesStep{Upgrade: u, n: u.Plan.find("cp1"), c: cluster.Scheduler, path: "x"}
		must.FailAs(t, must.Err(k.set(t.Context())), fault.Refused, "cp1: it has a configuration that is staged or tried")
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
			m := p.machines[planeAddrs[0]]
			m.UUID = "uuid-9"
			p.machines[planeAddrs[0]] = m
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
			if time.Since(start) > time.Hour {
				t.Fatal("it waits for ever")
			}
			time.Sleep(5 * time.Minute)
		}
	})
}

// TestPlanKubernetesLacks: a component that should run in the wanted version and does not is
// work, but nothing is changed.
func TestPlanKubernetesLacks(t *testing.T) {
	t.Parallel()
	pod := func(change func(*cluster.StaticPod)) func(*Seen) {
		return func(s *Seen) { change(&s.Pods[2]) } // the scheduler's
	}
	of := func(name string, change func(*NodeSeen)) func(*Seen) {
		return func(s *Seen) { *s = s.edit(name, change) }
	}
	type row struct {
		seen func(*Seen)
		node int // cp1, wk1
		want string
	}
	must.Each(t, map[string]row{
		"nothing":         {func(*Seen) {}, 0, ""},
		"no pod":          {func(s *Seen) { s.Pods = s.Pods[:2] }, 0, "kube-scheduler: Kubernetes does not show its pod"},
		"an old pod":      {pod(func(p *cluster.StaticPod) { p.Image = "registry.k8s.io/kube-scheduler:v1.34.6" }), 0, "kube-scheduler: its pod still is the old one: registry.k8s.io/kube-scheduler:v1.34.6, of revision 1"},
		"an old revision": {of("cp1", func(n *NodeSeen) { n.Machine.Revisions = map[cluster.Component]uint64{cluster.Scheduler: 2} }), 0, "kube-scheduler: its pod still is the old one: registry.k8s.io/kube-scheduler:v1.35.4, of revision 1"},
		"it loops":        {pod(func(p *cluster.StaticPod) { p.Ready, p.Why = false, "CrashLoopBackOff" }), 0, "kube-scheduler: its pod is not Ready: CrashLoopBackOff"},
		"a silent server": {of("cp1", func(n *NodeSeen) { n.ServesErr = errors.New("no answer") }), 0, "kube-apiserver: no answer"},
		"an old server":   {of("cp1", func(n *NodeSeen) { n.Serves = "v1.34.6" }), 0, "kube-apiserver: it answers as v1.34.6"},
		"not Ready":       {of("wk1", func(n *NodeSeen) { n.Node.Ready = false }), 1, "kubelet: its node is not Ready"},
		"a kubelet":       {of("wk1", func(n *NodeSeen) { n.Machine.KubeletHealthy = false }), 1, "kubelet: Talos' service kubelet is not healthy"},
	}, func(t *testing.T, tc row) {
		seen := seenAt("v1.35.4")
		tc.seen(&seen)
		plan, err := NewPlan("c1", "v1.35.4", seen)
		if err != nil || len(plan.Refused) > 0 {
			t.Fatalf("%v, refused %q", err, plan.Refused)
		}
		got := strings.Join(plan.Nodes[tc.node].Lacks, "; ")
		must.Equal(t, "lacks", []any{tc.want, tc.want != "", 0}, []any{got, plan.Work(), len(plan.Nodes[tc.node].Changes)})
	})
}

// TestPlanKubernetesProxyHalfDone: a DaemonSet with the new image but not yet the pods is waited for.
func TestPlanKubernetesProxyHalfDone(t *testing.T) {
	t.Parallel()
	seen := seenAt("v1.35.4")
	seen.Proxy.Wanted, seen.Proxy.Updated, seen.Proxy.Available = 2, 1, 2
	plan, err := NewPlan("c1", "v1.35.4", seen)
	if err != nil || !plan.Work() || plan.Proxy == nil || plan.Proxy.To != seen.Proxy.Image {
		t.Errorf("%+v, %v", plan, err)
	}
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
		"standard": {func(s Seen) Seen { return s }, command + " --with-docs=false --with-examples=false --dry-run shows"},
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
		if err != nil || !strings.Contains(plan.LeftOver, tc.want) || len(plan.Refused) > 0 {
			t.Errorf("%v, %q, %q, want %q", err, plan.Refused, plan.LeftOver, tc.want)
		}
		if strings.Contains(tc.want, "--to") != strings.Contains(plan.LeftOver, "--to") {
			t.Errorf("%q", plan.LeftOver)
		}
	})
	seen := seenAt("v1.35.4")
	seen.Proxy.Image = "registry.k8s.io/kube-proxy:v1.31.0"
	plan, _ := NewPlan("c1", "v1.36.1", image("cp1", cluster.KubeProxy, "reg.local/kube-proxy:v1.35.4")(seen))
	if len(plan.Refused) != 1 || !strings.Contains(plan.Refused[0], "upgrade-k8s --to 1.35.4 --proxy-image=reg.local/kube-proxy --with-docs=false") {
		t.Errorf("refused %q", plan.Refused)
	}
}
