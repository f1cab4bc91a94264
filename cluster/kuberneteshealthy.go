package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// lacks names the first thing that a component of a node lacks to run in the
// wanted version; "" when it does.
func (u *KubernetesUpgrade) lacks(ctx context.Context, n KubernetesNode, c Component) (string, error) {
	m, err := u.Talos.Kubernetes(ctx, n.Addr)
	if err != nil {
		return "", err
	}
	r, err := parseImage(m.Images.Of(c))
	switch {
	case m.UUID != n.UUID:
		return "", fault.Refusedf("%s answers with UUID %s, not %s", n.Addr, m.UUID, n.UUID)
	case err != nil || r.version.String() != u.Plan.To:
		return fmt.Sprintf("its configuration names %s", cmpNone(m.Images.Of(c))), nil
	case c == Kubelet:
		return u.lacksKubelet(ctx, n, m)
	case c == KubeProxy:
		return "", nil // what runs is the DaemonSet's
	}
	pods, err := u.Kube.StaticPods(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(pods, func(p StaticPod) bool { return p.Node == n.Node && p.Component == c })
	if i < 0 {
		return "Kubernetes does not show its pod", nil
	}
	switch p := pods[i]; {
	case !SameVersion(p.Image, m.Images.Of(c)) || p.Revision < m.Revisions[c]:
		return fmt.Sprintf("its pod still is the old one: %s, of revision %d", p.Image, p.Revision), nil
	case !p.Ready:
		return "its pod is not Ready: " + cmpNone(p.Why), nil
	}
	return "", nil
}

func (u *KubernetesUpgrade) lacksKubelet(ctx context.Context, n KubernetesNode, m MachineKubernetes) (string, error) {
	if !m.KubeletHealthy {
		return "Talos' service kubelet is not healthy", nil
	}
	nodes, err := u.Kube.Nodes(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(nodes, func(k KubeNode) bool { return k.Name == n.Node })
	if i >= 0 {
		if runs, err := parseKubeVersion(nodes[i].KubeletVersion); err != nil || runs.String() != u.Plan.To {
			return "Kubernetes still sees kubelet " + nodes[i].KubeletVersion, nil //nolint:nilerr // it says what it is
		}
	}
	return lacksNode(ctx, u.Kube, n.Node, Machine{UUID: m.UUID, BootID: m.BootID})
}

// check refuses to begin unless everything is healthy. What an earlier run has
// changed already is waited for first: it may not have come up yet.
func (u *KubernetesUpgrade) check(ctx context.Context) error {
	changed, err := u.changed(ctx)
	if err != nil {
		return err
	}
	if len(changed) > 0 {
		if err := u.settle(ctx, upgradeKubernetes+"/check", changed); err != nil {
			return err
		}
	}
	return u.requireOthers(ctx, "")
}

// changed are the components whose configuration names the wanted version.
func (u *KubernetesUpgrade) changed(ctx context.Context) (out []spotOf, err error) {
	for _, n := range u.Plan.Nodes {
		m, err := u.Talos.Kubernetes(ctx, n.Addr)
		if err != nil {
			return nil, err
		}
		for _, c := range Components {
			if r, err := parseImage(m.Images.Of(c)); err == nil && r.version.String() == u.Plan.To {
				out = append(out, spotOf{n.Node, c})
			}
		}
	}
	return out, nil
}

// requireOthers refuses to restart a component while something else is down:
// one more would be one too many.
func (u *KubernetesUpgrade) requireOthers(ctx context.Context, except string) error {
	nodes, err := u.Kube.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("list Kubernetes nodes: %w", err)
	}
	var down []string
	for _, k := range nodes {
		if !k.Ready && k.Name != except {
			down = append(down, "node "+k.Name+" is not Ready")
		}
	}
	pods, err := u.Kube.StaticPods(ctx)
	if err != nil {
		return fmt.Errorf("list the pods of the control planes: %w", err)
	}
	for _, n := range u.with(APIServer) {
		i := slices.IndexFunc(pods, func(p StaticPod) bool { return p.Node == n.Node && p.Component == APIServer })
		if n.Node != except && (i < 0 || !pods[i].Ready) {
			down = append(down, "the API server of "+n.Node+" is not Ready")
		}
	}
	if len(down) > 0 {
		slices.Sort(down)
		return fault.WithHint(fault.Refusedf("%s", strings.Join(down, ", ")), "bring them back first; one more out would be one too many")
	}
	return u.requireEtcd(ctx)
}

func (u *KubernetesUpgrade) requireEtcd(ctx context.Context) error {
	var ask []endpoint
	for _, n := range u.with(APIServer) {
		ask = append(ask, endpoint{n.Node, n.Addr})
	}
	v, err := viewEtcd(ctx, u.Talos, ask)
	if err != nil {
		return fault.WithHint(fault.As(fault.Refused, err), "talosctl etcd status; bring etcd back first")
	}
	if wrong := v.unhealthy(""); len(wrong) > 0 {
		return fault.WithHint(fault.Refusedf("etcd is not healthy: %s", strings.Join(wrong, "; ")), "talosctl etcd status; talosctl etcd alarm list; put etcd right first")
	}
	return nil
}
