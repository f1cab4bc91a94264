package observe

import (
	"context"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// OwnPod is where recast itself runs.
type OwnPod struct {
	Node string // the node, if recast is a pod of this cluster; "": it is not
	Err  error  // why that is not known; nil: it is
}

// readOwnPod fails only where Kubernetes does not answer, as the rest of it was read. Where that is so
// because a control plane is out, or the cluster is broken, the answer stays unknown.
func (o *Observation) readOwnPod(ctx context.Context, src Sources) error {
	if o.First != "" && o.Rebuild == "" {
		return nil // there is no cluster yet, and no pod of it
	}
	o.OwnPod.Node, o.OwnPod.Err = src.Kube.OwnNode(ctx)
	if cluster.IsUnanswered(o.OwnPod.Err) && o.Dark == nil && o.First == "" {
		return fault.Prefix("read Kubernetes", o.OwnPod.Err)
	}
	return nil
}
