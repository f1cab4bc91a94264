package kubeupgrade

import (
	"errors"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

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
	for name, tc := range map[string]struct {
		seen func(*Seen)
		node int // cp1, wk1
		want string
	}{
		"nothing":         {func(*Seen) {}, 0, ""},
		"no pod":          {func(s *Seen) { s.Pods = s.Pods[:2] }, 0, "kube-scheduler: Kubernetes does not show its pod"},
		"an old pod":      {pod(func(p *cluster.StaticPod) { p.Image = "registry.k8s.io/kube-scheduler:v1.34.6" }), 0, "kube-scheduler: its pod still is the old one: registry.k8s.io/kube-scheduler:v1.34.6, of revision 1"},
		"an old revision": {of("cp1", func(n *NodeSeen) { n.Machine.Revisions = map[cluster.Component]uint64{cluster.Scheduler: 2} }), 0, "kube-scheduler: its pod still is the old one: registry.k8s.io/kube-scheduler:v1.35.4, of revision 1"},
		"it loops":        {pod(func(p *cluster.StaticPod) { p.Ready, p.Why = false, "CrashLoopBackOff" }), 0, "kube-scheduler: its pod is not Ready: CrashLoopBackOff"},
		"a silent server": {of("cp1", func(n *NodeSeen) { n.ServesErr = errors.New("no answer") }), 0, "kube-apiserver: no answer"},
		"an old server":   {of("cp1", func(n *NodeSeen) { n.Serves = "v1.34.6" }), 0, "kube-apiserver: it answers as v1.34.6"},
		"not Ready":       {of("wk1", func(n *NodeSeen) { n.Node.Ready = false }), 1, "kubelet: its node is not Ready"},
		"a kubelet":       {of("wk1", func(n *NodeSeen) { n.Machine.KubeletHealthy = false }), 1, "kubelet: Talos' service kubelet is not healthy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := seenAt("v1.35.4")
			tc.seen(&seen)
			plan, err := NewPlan("c1", "v1.35.4", seen)
			if err != nil || len(plan.Refused) > 0 {
				t.Fatalf("%v, refused %q", err, plan.Refused)
			}
			got := strings.Join(plan.Nodes[tc.node].Lacks, "; ")
			if got != tc.want || plan.Work() != (tc.want != "") || len(plan.Nodes[tc.node].Changes) > 0 {
				t.Errorf("lacks %q, want %q; work %t: %+v", got, tc.want, plan.Work(), plan.Nodes)
			}
		})
	}
}

// TestPlanKubernetesProxyHalfDone: a DaemonSet with the new image but not yet the pods is
// waited for.
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
	for name, tc := range map[string]struct {
		seen func(Seen) Seen
		want string
	}{
		"standard": {func(s Seen) Seen { return s }, command + " --with-docs=false --with-examples=false --dry-run shows"},
		"own": {
			image("cp1", cluster.Scheduler, "reg.local:5000/k8s/kube-scheduler:v1.35.4"),
			command + " --scheduler-image=reg.local:5000/k8s/kube-scheduler --with-docs=false --with-examples=false --dry-run shows",
		},
		"variant":   {image("cp1", cluster.Kubelet, "ghcr.io/siderolabs/kubelet:v1.35.4-fat"), command + " --with-docs=false"},
		"different": {image("wk1", cluster.Kubelet, "reg.local/kubelet:v1.35.4"), "nodes run kubelet from different repositories"},
		"no letter": {image("cp1", cluster.KubeProxy, "registry.k8s.io/kube-proxy:1.35.4"), "talosctl upgrade-k8s would give kube-proxy of cp1 another image than registry.k8s.io/kube-proxy:1.35.4"},
		"digest":    {image("cp1", cluster.APIServer, "registry.k8s.io/kube-apiserver:v1.36.1@sha256:00"), "talosctl upgrade-k8s would give kube-apiserver of cp1 another image"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := NewPlan("c1", "v1.36.1", tc.seen(seenAt("v1.35.4")))
			if err != nil || !strings.Contains(plan.LeftOver, tc.want) || len(plan.Refused) > 0 {
				t.Errorf("%v, %q, %q, want %q", err, plan.Refused, plan.LeftOver, tc.want)
			}
			if strings.Contains(tc.want, "--to") != strings.Contains(plan.LeftOver, "--to") {
				t.Errorf("%q", plan.LeftOver)
			}
		})
	}
	seen := seenAt("v1.35.4")
	seen.Proxy.Image = "registry.k8s.io/kube-proxy:v1.31.0"
	plan, _ := NewPlan("c1", "v1.36.1", image("cp1", cluster.KubeProxy, "reg.local/kube-proxy:v1.35.4")(seen))
	if len(plan.Refused) != 1 || !strings.Contains(plan.Refused[0], "upgrade-k8s --to 1.35.4 --proxy-image=reg.local/kube-proxy --with-docs=false") {
		t.Errorf("refused %q", plan.Refused)
	}
}
