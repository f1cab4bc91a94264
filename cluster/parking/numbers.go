package parking

import (
	"context"
	"slices"
	"sync"

	"github.com/recast-sh/recast/cluster"
)

// Numbers remembers which VMID to try next for a parking VM. Those before it were already taken
// when this roll looked.
type Numbers struct {
	mu   sync.Mutex
	from cluster.VMID
	of   map[string]cluster.VMID // by node: the VMID that its parking VM has or may get
	busy chan struct{}           // full while the first parking VM is being made
	made bool                    // whether it was
}

// InOrder returns ids with the node's own first and those that were taken last.
func (f *Numbers) InOrder(node string, ids []cluster.VMID) []cluster.VMID {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := max(0, slices.Index(ids, f.from))
	ids = slices.Concat(ids[i:], ids[:i])
	if own, known := f.of[node]; known {
		ids = slices.Insert(ids, 0, own)
	}
	return ids
}

// Met notes the VMID that a node's parking VM has or may get.
func (f *Numbers) Met(node string, id cluster.VMID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = map[string]cluster.VMID{}
	}
	f.of[node] = id
}

// Next notes that a VMID is about to be used for a node.
func (f *Numbers) Next(node string, id cluster.VMID) {
	f.Met(node, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.from = id
}

// Others reports whether a VMID belongs to the parking VM of another node.
func (f *Numbers) Others(node string, id cluster.VMID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for other, its := range f.of {
		if its == id && other != node {
			return true
		}
	}
	return false
}

// Turn waits while another caller makes the first parking VM of this roll, because that caller
// finds out which parking VMs were created late. The caller tells end whether it made one.
func (f *Numbers) Turn(ctx context.Context) (end func(made bool), err error) {
	f.mu.Lock()
	if f.busy == nil {
		f.busy = make(chan struct{}, 1)
	}
	f.mu.Unlock()
	select {
	case f.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made {
		<-f.busy
		return func(bool) {}, nil
	}
	return func(made bool) {
		f.mu.Lock()
		f.made = made
		f.mu.Unlock()
		<-f.busy
	}, nil
}
