// Package heap measures memory for tests and benchmarks: [Peak] is the most that a
// function had on the heap, [Count] how many objects were allocated there.
package heap

import (
	"context"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// Peak is the largest size in bytes of the heap's objects while f ran, sampled every two milliseconds.
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

// Count starts to count the objects that all goroutines allocate; the returned func says how many they are so far.
func Count() func() uint64 {
	begin := mallocs()
	return func() uint64 { return mallocs() - begin }
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
