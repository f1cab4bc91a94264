package kubeupgrade

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Foresee lists what would stop the plan halfway and can be known before anything restarts: a
// machine configuration that would not accept the images, and certificates that await approval.
// It changes nothing.
func (p Plan) Foresee(ctx context.Context, talos cluster.MachineReader, m cluster.Maintenance, kube cluster.KubeReader) (refused []string, err error) {
	for _, n := range p.Nodes {
		if len(n.Changes) == 0 {
			continue
		}
		config, err := talos.MachineConfig(ctx, n.Addr)
		if err != nil {
			return nil, fmt.Errorf("read machine configuration of %s: %w", n.Node, err)
		}
		patch := cluster.ConfigPatch{Talos: n.Talos}
		for _, c := range n.Changes {
			patch.Kubernetes = patch.Kubernetes.With(c.Component, c.To)
		}
		if _, err := m.PatchConfig(config, patch); err != nil {
			refused = append(refused, fmt.Sprintf("machine configuration of %s: %s", n.Node, withHints(err)))
		}
		if !slices.ContainsFunc(n.Changes, func(c ImageChange) bool { return c.Component == cluster.Kubelet && c.From != c.To }) {
			continue // the plan does not restart its kubelet
		}
		pending, err := kube.PendingCertificates(ctx, n.Node)
		if err != nil {
			return nil, fmt.Errorf("list certificate requests: %w", err)
		}
		if len(pending) > 0 {
			refused = append(refused, fmt.Sprintf("%s: certificate requests of its kubelet wait for approval, and its next one would: kubectl certificate approve %s, or have kubelet-serving-cert-approver do it",
				n.Node, strings.Join(pending, " ")))
		}
	}
	return refused, nil
}

// RequireSame refuses a plan that differs from the one that was shown. A change that someone
// has already made is no difference.
func (p Plan) RequireSame(shown Plan) error {
	var other []string
	for _, n := range p.Nodes {
		i := slices.IndexFunc(shown.Nodes, func(s Node) bool { return s.Node == n.Node })
		switch {
		case i < 0:
			other = append(other, n.Node+" has joined")
		default:
			other = append(other, n.differs(shown.Nodes[i])...)
		}
	}
	for _, s := range shown.Nodes {
		if !slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Node == s.Node }) {
			other = append(other, s.Node+" is gone")
		}
	}
	if p.Proxy != nil && (shown.Proxy == nil || *p.Proxy != *shown.Proxy) {
		other = append(other, "the image of DaemonSet kube-proxy is "+p.Proxy.From)
	}
	for _, why := range p.Refused {
		if !slices.Contains(shown.Refused, why) {
			other = append(other, why)
		}
	}
	if len(other) == 0 {
		return nil
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("the cluster is no longer as the plan says: %s", strings.Join(other, "; ")), "nothing was changed; the same command again shows the plan of now")
}

// differs says how a node has changed since it was shown.
func (n Node) differs(shown Node) (how []string) {
	switch {
	case n.UUID != shown.UUID || n.Addr != shown.Addr || n.Role != shown.Role:
		how = append(how, n.Node+" is another machine, or at another address")
	case n.Talos != shown.Talos:
		how = append(how, fmt.Sprintf("%s runs Talos %s", n.Node, cmp.Or(n.Talos, "of no known version")))
	}
	for _, c := range n.Changes {
		if !slices.Contains(shown.Changes, c) && c.From != c.To {
			how = append(how, fmt.Sprintf("%s of %s is to run %s", c.Component, n.Node, c.From))
		}
	}
	return how
}
