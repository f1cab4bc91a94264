package step

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// slots are counted permits, shared over a whole tree.
type slots struct {
	room map[string]int // Runner.Slots

	mu     sync.Mutex
	byName map[string]chan struct{} // a token for each step that holds the slot
}

func newSlots(room map[string]int) *slots {
	return &slots{room: room, byName: map[string]chan struct{}{}}
}

func (s *slots) slot(name string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.byName[name]
	if !ok {
		room := 1
		if n, listed := s.room[name]; listed {
			room = n
		}
		c = make(chan struct{}, room)
		s.byName[name] = c
	}
	return c
}

// take waits for every named slot, one after the other. It returns true if it holds all
// of them, and false if the wait was ended; then it holds none.
func (s *slots) take(ctx context.Context, names []string, ended <-chan struct{}) bool {
	for i, name := range names {
		select {
		case s.slot(name) <- struct{}{}:
		case <-ended:
			s.release(names[:i])
			return false
		case <-ctx.Done():
			s.release(names[:i])
			return false
		}
	}
	// An end that has come already takes precedence over a free slot.
	select {
	case <-ended:
	case <-ctx.Done():
	default:
		return true
	}
	s.release(names)
	return false
}

func (s *slots) release(names []string) {
	for _, name := range names {
		<-s.slot(name)
	}
}

// without returns the slots of uses that are not held, sorted and once each.
func without(uses, held []string) []string {
	var names []string
	for _, name := range uses {
		if !slices.Contains(held, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func checkSlots(room map[string]int) error {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(room)) {
		if room[name] < 1 {
			problems = append(problems, fmt.Errorf("slot %q has room for %d steps: nothing could ever take it", name, room[name]))
		}
	}
	return errors.Join(problems...)
}
