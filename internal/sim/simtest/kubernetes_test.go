package simtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/pipeline"
)

// UpgradeKubernetes is recast upgrade-k8s --yes --to VERSION.
func (c *Client) UpgradeKubernetes(ctx context.Context, to string, dryRun bool) (pipeline.UpgradeKubernetesReport, error) {
	s, err := c.connect(ctx)
	if err != nil {
		return pipeline.UpgradeKubernetesReport{}, err
	}
	defer s.end()
	c.Runner.Emit = c.emit
	return checked[pipeline.UpgradeKubernetesReport](c.lab)(pipeline.UpgradeKubernetes(ctx, s.project, s.machines, &c.Runner, pipeline.UpgradeKubernetesOptions{
		To: to, DryRun: dryRun, Claim: c.rollOptions(planning.Policy{}),
		Confirm: func(p kubeupgrade.Plan) (bool, error) {
			if c.Upgrades == nil {
				return true, nil
			}
			return c.Upgrades(p)
		},
	}))
}

// upgradeKubernetes upgrades everything to nextKubernetes.
func (c *Client) upgradeKubernetes(ctx context.Context) error {
	_, err := c.UpgradeKubernetes(ctx, nextKubernetes, false)
	return err
}

// The Kubernetes of a new lab, and the one after it.
const (
	labKubernetes  = "v1.35.4"
	nextKubernetes = "v1.36.1"
)

// mustUpgradeKubernetes is an upgrade that must succeed.
func (l *Lab) mustUpgradeKubernetes() {
	l.t.Helper()
	c := l.as("20000101-0002-feed")
	must(l.t, c.upgradeKubernetes(l.t.Context()))
	l.requireKubernetes(nextKubernetes)
}

// versions are the Talos and Kubernetes versions of every node, and the DaemonSet's.
func (l *Lab) versions() map[string]string {
	l.t.Helper()
	s := l.session()
	defer s.end()
	nodes := valueOf(s.machines.Kube.Nodes(l.t.Context()))(l.t)
	pods := valueOf(s.machines.Kube.StaticPods(l.t.Context()))(l.t)
	out := map[string]string{}
	note := func(node, what, version string) { out[node] += fmt.Sprintf("%s=%s ", what, version) }
	for _, n := range nodes {
		m := valueOf(s.machines.Talos.Kubernetes(l.t.Context(), n.Addresses[0]))(l.t)
		for _, c := range cluster.Components {
			if image := m.Images.Of(c); image != "" {
				note(n.Name, strings.TrimPrefix(string(c), "kube-"), image[strings.LastIndex(image, ":")+1:])
			}
		}
		note(n.Name, "node", n.KubeletVersion)
	}
	for _, p := range pods {
		note(p.Node, "pod", p.Image[strings.LastIndex(p.Image, "/")+1:])
	}
	set := valueOf(s.machines.Kube.ProxySet(l.t.Context()))(l.t)
	out["kube-proxy"] = set.Image[strings.LastIndex(set.Image, ":")+1:]
	return out
}

// requireKubernetes fails the test unless everything runs that version.
func (l *Lab) requireKubernetes(version string) {
	l.t.Helper()
	for node, what := range l.versions() {
		for one := range strings.FieldsSeq(what) {
			if !strings.HasSuffix(one, version) {
				l.t.Errorf("%s: %s, want all %s", node, what, version)
				break
			}
		}
	}
}

// TestUpgradeKubernetes: everything gets the next minor version, nothing reboots, and then
// there is nothing to do.
func TestUpgradeKubernetes(t *testing.T) {
	longParts(t)
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 2}, func(t *testing.T, lab *Lab) {
		boots := lab.boots()
		from := len(lab.Recorder.Calls())
		rep, err := lab.Client().UpgradeKubernetes(t.Context(), nextKubernetes, true)
		if err != nil || rep.Run != "" || rep.Plan.From != labKubernetes || len(rep.Plan.Nodes) != 5 || len(rep.Plan.Nodes[0].Changes) != 5 || len(rep.Plan.Nodes[4].Changes) != 1 || rep.Plan.Proxy == nil {
			t.Fatalf("dry run %+v, %v", rep, err)
		}
		for _, call := range lab.Recorder.Calls()[from:] {
			require(t, !call.Mutation, "a dry run has changed something: %s %s", call.Method, call.Path)
		}
		rep, err = lab.Client().UpgradeKubernetes(t.Context(), nextKubernetes, false)
		mustBe(t, err == nil && rep.Outcome == "done", "%+v, %v\nhints %q", rep, err, fault.Hints(err))
		lab.requireKubernetes(nextKubernetes)
		after := lab.boots()
		require(t, slices.Equal(boots, after), "boots %q, then %q", boots, after)
		if rep, err = lab.Client().UpgradeKubernetes(t.Context(), nextKubernetes, false); err != nil || rep.Outcome != "nothing to do" || rep.Run != "" {
			t.Errorf("again: %+v, %v", rep, err)
		}
		lab.RequireIntact()
	})
}

// boots are the boot IDs of the nodes in Kubernetes.
func (l *Lab) boots() (out []string) {
	l.t.Helper()
	for _, n := range l.Nodes {
		k := l.kubeNode(n.Name)
		out = append(out, n.Name+" "+k.Status.NodeInfo.BootID)
	}
	return out
}
