package planning

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
)

// TakePulse checks once. A server that does not answer is no error: its part stays unknown.
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

// The time between two checks of the cluster, as a multiple of roll.poll, and longer for many Nodes.
const (
	pulseEvery   = 5
	nodesPerPoll = 10
)

// lastLook is how long the end of a run waits for the last check.
const lastLook = 3 * time.Second

// WatchPulse checks Kubernetes and etcd from time to time while p is carried out, and calls pulsed; nil: it does
// nothing. It only reads, and delays nothing but the end of the run.
func WatchPulse(ctx context.Context, p Plan, poll time.Duration, kube cluster.NodeReader, talos cluster.EtcdReader, pulsed func(Pulse)) (unwatch func()) {
	if pulsed == nil {
		return func() {}
	}
	every := max(pulseEvery*poll, time.Duration(len(p.Nodes))*poll/nodesPerPoll)
	look := func(ctx context.Context, timeout time.Duration) {
		within, done := context.WithTimeout(ctx, timeout)
		defer done()
		if seen := p.TakePulse(within, kube, talos); ctx.Err() == nil {
			pulsed(seen)
		}
	}
	meanwhile, cancel := context.WithCancel(ctx)
	var under sync.WaitGroup
	under.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			look(meanwhile, every)
			select {
			case <-meanwhile.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		cancel()
		under.Wait()
		look(ctx, lastLook)
	}
}
