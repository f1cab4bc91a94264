package pipeline

import (
	"context"
	"sync"
	"time"
)

// The time between two checks of the cluster, as a multiple of roll.poll, and longer for
// many Nodes.
const (
	pulseEvery   = 5
	nodesPerPoll = 10
)

// lastLook is how long the end of a run waits for the last check.
const lastLook = 3 * time.Second

// watchPulse checks Kubernetes and etcd from time to time while a plan is carried out, and
// calls Pulsed. It only reads, and delays nothing but the end of the run.
func (w *work) watchPulse(ctx context.Context) (unwatch func()) {
	if w.o.Pulsed == nil {
		return func() {}
	}
	plan, poll := w.rep.Plan, timing(w.Config).Poll
	every := max(pulseEvery*poll, time.Duration(len(plan.Nodes))*poll/nodesPerPoll)
	look := func(ctx context.Context, timeout time.Duration) {
		within, done := context.WithTimeout(ctx, timeout)
		defer done()
		if p := plan.TakePulse(within, w.machines.Kube, w.machines.Talos); ctx.Err() == nil {
			w.o.Pulsed(p)
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
