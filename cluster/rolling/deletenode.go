package rolling

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// DeleteNode is the step that deletes the node's Node, unless mayGo refuses. A Node that may stay, by
// mayStay, is left; nil: none may.
func DeleteNode(n *Node, title string, mayGo func(context.Context, cluster.KubeNode) error, mayStay func(cluster.KubeNode) bool) step.Step {
	look := func(ctx context.Context) (k cluster.KubeNode, done string, err error) {
		k, err = n.Kube.Node(ctx, n.Plan.Node)
		switch {
		case errors.Is(err, cluster.ErrNotFound):
			return k, "Kubernetes has none of that name", nil
		case err != nil:
			return k, "", fmt.Errorf("ask Kubernetes for node %s: %w", n.Plan.Node, err)
		case mayStay != nil && mayStay(k):
			return k, "it is that of the new machine", nil
		}
		return k, "", nil
	}
	return step.Step{
		ID: "delete-node", Title: title, Risk: step.Destructive,
		Skip: func(ctx context.Context) (string, error) { _, done, err := look(ctx); return done, err },
		Do: func(ctx context.Context) error {
			k, done, err := look(ctx)
			if err != nil || done != "" {
				return err
			}
			if err := mayGo(ctx, k); err != nil {
				return err
			}
			return fault.Prefix("delete Node "+k.Name, n.Kube.DeleteNode(ctx, k.Name, k.UID))
		},
	}
}
