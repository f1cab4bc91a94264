package planning

import (
	"context"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// The time between two checks of the cluster, as a multiple of roll.poll, and longer for
// many Nodes.
const (
	pulseEvery   = 5
	nodesPerPoll = 10
)

// lastLook is how long the end of a run waits for the last check.
const lastLook = 3 * time.Second

// WatchPulse checks Kubernetes and etcd from time to time while p is carried out, and
// calls pulsed; nil: it does nothing. It only reads, and delays nothing but the end of the run.
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
