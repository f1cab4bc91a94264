package main

import (
	"bytes"
	"io"
	"sync/atomic"
	"time"
)

const (
	pumped       = 16384           // writes that wait for whoever reads
	pumpPatience = 2 * time.Second // with a reader that takes nothing
)

// pump writes for others, who never wait for whoever reads. What finds no room is
// dropped, and told of once there is some again.
type pump struct {
	to    io.Writer
	lost  func(writes int64)
	bears time.Duration

	waiting chan []byte
	over    chan struct{}
	wrote   chan struct{} // something was
	left    atomic.Int64  // that waits, or is being written
	dropped atomic.Int64
}

func newPump(to io.Writer, lost func(int64)) *pump {
	p := &pump{
		to: to, lost: lost, bears: pumpPatience,
		waiting: make(chan []byte, pumped), over: make(chan struct{}), wrote: make(chan struct{}, 1),
	}
	go p.run() // ends with stop, or with the process: a write that nobody takes lasts for ever
	return p
}

// Write implements io.Writer. It never fails: a run goes on though nobody reads.
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

// flush waits until everything is written, for as long as somebody reads.
func (p *pump) flush() {
	for p.left.Load() > 0 {
		late := time.NewTimer(p.bears)
		select {
		case <-p.wrote:
			late.Stop()
		case <-late.C:
			return
		}
	}
}

// stop ends it, once everything is written.
func (p *pump) stop() { close(p.over) }
