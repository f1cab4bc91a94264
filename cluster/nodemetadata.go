package cluster

import (
	"context"

	"github.com/recast-sh/recast/internal/fault"
)

// restoreMetadata gives a Node back what people had put on it, if it is another
// object than before: a person or a cloud controller deleted that, and the kubelet
// registered anew. On the same one whatever changed meanwhile was changed on purpose.
func (n *nodeRoll) restoreMetadata(ctx context.Context) error {
	mem, err := n.memory(ctx)
	if err != nil {
		return err
	}
	k, err := n.kubeNode(ctx)
	if err != nil {
		return err
	}
	if !mem.lostMetadata(k) {
		return nil
	}
	return fault.Prefix("restore metadata of node "+n.plan.Node, n.Kube.RestoreMetadata(ctx, n.plan.Node, mem.Metadata))
}

// lostMetadata says whether a Node is not the one that was remembered, as far as
// that can be told.
func (m memory) lostMetadata(now KubeNode) bool { return m.NodeUID == "" || m.NodeUID != now.UID }
