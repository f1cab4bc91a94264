package pipeline

import (
	"context"
	"sync"
	"time"
)

// The time between two looks at how the cluster stands: so many pauses of roll.poll,
// and more of them where one look is at many Nodes.
const (
	pulseEvery   = 5
	nodesPerPoll = 10
)

// lastLook is how long the end of a run waits for how the cluster stands then.
const lastLook = 3 * time.Second

// watchPulse looks at Kubernetes and etcd from time to time while a plan is carried
// out, and tells Pulsed. It only reads, and nothing waits for it but its own end.
func (w *work) watchPulse(ctx context.Context) (unwatch func()) {
	if w.o.Pulsed == nil {
		return func() {}
	}
	plan, poll := w.rep.Plan, w.timing().Poll
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
