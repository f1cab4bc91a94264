package step

import (
	"context"
	"sync"
)

// scope is how far a halt reaches: the tree has one, and so has every Whole
// branch that has started. Within a halted scope no further step starts.
type scope struct {
	parent *scope
	halted chan struct{}
	once   sync.Once
}

func newScope(parent *scope) *scope {
	return &scope{parent: parent, halted: make(chan struct{})}
}

func (s *scope) halt() { s.once.Do(func() { close(s.halted) }) }

// fail halts the scope of a failed step and those around it. Other Whole
// branches that have started have scopes of their own and go on.
func (s *scope) fail() {
	for ; s != nil; s = s.parent {
		s.halt()
	}
}

// ended says whether no further step may start.
func (s *scope) ended(ctx context.Context) bool {
	select {
	case <-s.halted:
		return true
	default:
		return ctx.Err() != nil
	}
}
