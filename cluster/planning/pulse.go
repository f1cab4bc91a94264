package planning

import (
	"context"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
)

// TakePulse looks once. A server that does not answer is no error: its part stays unknown.
func (p Plan) TakePulse(ctx context.Context, kube cluster.NodeReader, talos cluster.EtcdReader) Pulse {
	var pulse Pulse
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

// Pulse is how Kubernetes and etcd stood at one moment of a run.
type Pulse struct {
	Kubernetes bool     // its API answered; otherwise nothing is known about Nodes
	Nodes      int      // Node objects
	NotReady   []string // names of Nodes, sorted
	Etcd       bool     // a control plane listed the members; otherwise nothing is known about them
	Members    int
	Unwell     []string // members that do not answer, do not vote or know no leader, by name, sorted
}

// Ready counts the Nodes that are Ready.
func (p Pulse) Ready() int { return p.Nodes - len(p.NotReady) }

// Well counts the members of etcd that answer, vote and know a leader.
func (p Pulse) Well() int { return p.Members - len(p.Unwell) }
