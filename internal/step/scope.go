package step

import (
	"context"
	"errors"
	"sync"

	"github.com/recast-sh/recast/internal/fault"
)

// scope limits a halt: the tree has one, and every Whole branch that has started has its
// own. Within a halted scope no further step starts.
type scope struct {
	parent *scope
	halted chan struct{}
	once   sync.Once
}

func newScope(parent *scope) *scope {
	return &scope{parent: parent, halted: make(chan struct{})}
}

func (s *scope) halt() { s.once.Do(func() { close(s.halted) }) }

// fail halts the scope of a failed step and its parents. Other Whole branches that have
// started have their own scopes and continue.
func (s *scope) fail() {
	for ; s != nil; s = s.parent {
		s.halt()
	}
}

// errYielded is the cause with which a step that yields is cancelled.
var errYielded = errors.New("stopped")

// do runs the step's Do. If the step yields, it cancels Do when the whole tree is halted.
func (s Step) do(ctx context.Context, within *scope) error {
	if !s.Yields {
		return s.Do(ctx)
	}
	for within.parent != nil {
		within = within.parent
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		select {
		case <-within.halted:
			cancel(errYielded)
		case <-ctx.Done():
		}
	})
	err := s.Do(ctx)
	if err != nil && context.Cause(ctx) == errYielded {
		return fault.As(fault.Interrupted, err)
	}
	return err
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
