package planning

import (
	"context"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
)

// TakePulse looks once. Whoever does not answer is not known of: that is no error.
func (p Plan) TakePulse(ctx context.Context, kube cluster.KubeReader, talos cluster.Talos) cluster.Pulse {
	var pulse cluster.Pulse
	if nodes, err := kube.Nodes(ctx); err == nil {
		pulse.Kubernetes, pulse.Nodes = true, len(nodes)
		for _, k := range nodes {
			if !k.Ready {
				pulse.NotReady = append(pulse.NotReady, k.Name)
			}
		}
		slices.Sort(pulse.NotReady)
	}
	if v, err := etcd.Look(ctx, talos, p.ControlPlanes); err == nil {
		pulse.Etcd, pulse.Members = true, len(v.Members)
		for _, m := range v.Members {
			if s, known := v.Statuses[m.ID]; !known || m.Learner || s.Learner || s.Leader == 0 {
				pulse.Unwell = append(pulse.Unwell, m.Label())
			}
		}
		slices.Sort(pulse.Unwell)
	}
	return pulse
}
