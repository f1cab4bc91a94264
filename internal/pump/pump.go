// Package pump writes in the background, so that whoever writes never waits for a slow reader.
package pump

import (
	"bytes"
	"context"
	"io"
	"sync/atomic"
	"time"
)

// Queue is how many writes may wait for the reader.
const Queue = 16384

// Pump is a writer whose writes return at once. If its queue is full it drops writes,
// and reports their number once there is room again.
type Pump struct {
	// Patience is how long Flush waits with a reader that reads nothing.
	Patience time.Duration

	to   io.Writer
	lost func(writes int64)

	waiting chan []byte
	over    chan struct{}
	wrote   chan struct{} // receives after a write
	left    atomic.Int64  // writes that wait or are in progress
	dropped atomic.Int64
}

// New starts a pump. It calls lost with the number of writes that were dropped.
func New(to io.Writer, lost func(writes int64)) *Pump {
	p := &Pump{
		Patience: 2 * time.Second, to: to, lost: lost,
		waiting: make(chan []byte, Queue), over: make(chan struct{}), wrote: make(chan struct{}, 1),
	}
	go p.run() // ends with Stop, or with the process: a write that nobody reads blocks for ever
	return p
}

// Write implements io.Writer. It never fails: a run goes on even if nobody reads.
func (p *Pump) Write(b []byte) (int, error) {
	p.left.Add(1)
	select {
	case p.waiting <- bytes.Clone(b):
	default:
		p.left.Add(-1)
		p.dropped.Add(1)
	}
	return len(b), nil
}

func (p *Pump) run() {
	for {
		select {
		case <-p.over:
			return
		case b := <-p.waiting:
			_, _ = p.to.Write(b) // see Write
		}
		if len(p.waiting) < Queue/2 {
			if n := p.dropped.Swap(0); n > 0 {
				p.lost(n)
			}
		}
		p.left.Add(-1)
		select {
		case p.wrote <- struct{}{}:
		default:
		}
	}
}

// Empty says whether everything is written.
func (p *Pump) Empty() bool { return p.left.Load() == 0 }

// Flush waits until everything is written, as long as someone reads.
func (p *Pump) Flush() {
	for !p.Empty() {
		late := time.NewTimer(p.Patience)
		select {
		case <-p.wrote:
			late.Stop()
		case <-late.C:
			return
		}
	}
}

// Drain waits until everything is written or ctx ends: a stalled reader may continue.
func (p *Pump) Drain(ctx context.Context) {
	p.Flush() // also if ctx has ended
	for !p.Empty() {
		select {
		case <-p.wrote:
		case <-ctx.Done():
			return
		}
	}
}

// Stop ends the pump. The caller has seen that it is Empty.
func (p *Pump) Stop() { close(p.over) }
