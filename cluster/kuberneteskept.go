package cluster

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
)

// runsKubernetes is what the node runs, and runs again when it comes back. A
// configuration that names a digest alone is trusted to stay as it is.
func (n *nodeRoll) runsKubernetes(ctx context.Context) (KubernetesImages, error) {
	m, err := n.Talos.KubernetesImages(ctx, n.plan.Addr)
	if err != nil {
		return KubernetesImages{}, fmt.Errorf("read which Kubernetes %s runs: %w", n.plan.Node, err)
	}
	if m.UUID != n.plan.UUID {
		return KubernetesImages{}, fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not %s", n.plan.Addr, m.UUID, n.plan.UUID)
	}
	return m.Images, nil
}

// kubernetesOfOthers is what a machine that was reset is to run, and can't be
// asked any more: a kubelet of the version that its Node has had last and, on a
// control plane, what another one runs. Nothing where nobody tells.
func (n *nodeRoll) kubernetesOfOthers(ctx context.Context) (images KubernetesImages, err error) {
	asking, cancel := context.WithTimeout(ctx, lookAround)
	defer cancel()
	for _, e := range n.plan.controlPlanes {
		if n.plan.Role != ControlPlane || e.Node == n.plan.Node {
			continue
		}
		if m, err := n.Talos.KubernetesImages(asking, e.Addr); err == nil {
			images = m.Images
			break
		}
	}
	images.Kubelet = ""
	if k := n.plan.found.Node; k != nil && k.KubeletVersion != "" {
		images.Kubelet = "ghcr.io/siderolabs/kubelet:" + k.KubeletVersion
	}
	return images, ctx.Err()
}
