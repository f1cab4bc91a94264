// Package heap measures memory for tests and benchmarks: [Peak] is the most that a
// function had on the heap.
package heap

import (
	"context"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// Peak is the largest size in bytes of the heap's objects while f ran, sampled every two
// milliseconds.
func Peak(ctx context.Context, f func()) (peak uint64) {
	runtime.GC()
	ctx, done := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			metrics.Read(sample)
			peak = max(peak, sample[0].Value.Uint64())
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	f()
	done()
	watch.Wait()
	return peak
}
