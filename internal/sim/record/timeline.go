package record

import (
	"slices"
	"sync"
	"time"
)

// Delay is a time that the simulated world took for something.
type Delay struct {
	VMIDs    []int  // the VMs concerned; none if it concerns a node
	Node     string // of Kubernetes
	What     string // "boot", "qmmove"
	From, To time.Time
}

// Timeline is every delay of one world, or the last ones: see [Keeping]. The zero value is
// ready to use, and a nil Timeline keeps nothing.
type Timeline struct {
	keep   int
	mu     sync.Mutex
	delays []Delay
}

// Add keeps a finished delay.
func (t *Timeline) Add(d Delay) {
	if t == nil || !d.From.Before(d.To) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delays = trim(append(t.delays, d), t.keep)
}

// Delays returns a copy of all delays so far, in the order in which they ended.
func (t *Timeline) Delays() []Delay {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.delays)
}
