package kubeupgrade

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

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
	if diff := gocmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
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
	for name, c := range map[string]struct {
		now  func(p *Plan)
		want string // "": it is the same
	}{
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := shown()
			c.now(&p)
			err := p.RequireSame(shown())
			switch {
			case c.want == "" && err != nil:
				t.Errorf("err = %v", err)
			case c.want != "" && (fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), c.want)):
				t.Errorf("err = %v, want it refused: %s", err, c.want)
			}
		})
	}
}
