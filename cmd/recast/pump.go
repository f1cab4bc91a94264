package main

import (
	"bytes"
	"io"
	"sync/atomic"
	"time"
)

const (
	pumped       = 16384           // writes that may wait for the reader
	pumpPatience = 2 * time.Second // with a reader that reads nothing
)

// pump writes in the background, so that writers never wait for the reader. If its
// queue is full it drops writes, and reports their number once there is room again.
type pump struct {
	to       io.Writer
	lost     func(writes int64)
	patience time.Duration

	waiting chan []byte
	over    chan struct{}
	wrote   chan struct{} // receives after a write
	left    atomic.Int64  // writes that wait or are in progress
	dropped atomic.Int64
}

func newPump(to io.Writer, lost func(int64)) *pump {
	p := &pump{
		to: to, lost: lost, patience: pumpPatience,
		waiting: make(chan []byte, pumped), over: make(chan struct{}), wrote: make(chan struct{}, 1),
	}
	go p.run() // ends with stop, or with the process: a write that nobody reads blocks for ever
	return p
}

// Write implements io.Writer. It never fails: a run goes on even if nobody reads.
func (p *pump) Write(b []byte) (int, error) {
	p.left.Add(1)
	select {
	case p.waiting <- bytes.Clone(b):
	default:
		p.left.Add(-1)
		p.dropped.Add(1)
	}
	return len(b), nil
}

func (p *pump) run() {
	for {
		select {
		case <-p.over:
			return
		case b := <-p.waiting:
			_, _ = p.to.Write(b) // see Write
		}
		if len(p.waiting) < pumped/2 {
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

// flush waits until everything is written, as long as someone reads.
func (p *pump) flush() {
	for p.left.Load() > 0 {
		late := time.NewTimer(p.patience)
		select {
		case <-p.wrote:
			late.Stop()
		case <-late.C:
			return
		}
	}
}

// stop ends the goroutine. The caller has seen that everything is written.
func (p *pump) stop() { close(p.over) }
