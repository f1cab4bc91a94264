package store

import (
	"context"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type change struct {
	revision uint64
	resource schema.GroupVersionResource
	event    Event
}

// tell appends to the history and wakes the watchers.
func (m *Memory) tell(r schema.GroupVersionResource, e Event) {
	m.history = append(m.history, change{revision: m.revision, resource: r, event: e})
	if len(m.history) >= 2*historyKept {
		m.history = append([]change(nil), m.history[len(m.history)-historyKept:]...)
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// Watch reads the history from a revision on.
func (m *Memory) Watch(_ context.Context, r schema.GroupVersionResource, revision string) (Watch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &memoryWatch{store: m, resource: r, seen: m.revision}
	if revision != "" {
		seen, err := strconv.ParseUint(revision, 10, 64)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q", revision))
		}
		w.seen = seen
	}
	return w, nil
}

type memoryWatch struct {
	store    *Memory
	resource schema.GroupVersionResource
	seen     uint64 // revision
}

var _ Watch = (*memoryWatch)(nil)

func (w *memoryWatch) Next(ctx context.Context) (Event, error) {
	for {
		e, ok, changed, err := w.step()
		if ok || err != nil {
			return e, err
		}
		select {
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		case <-changed:
		}
	}
}

// step does not wait: it returns an event, or the channel that is closed at the next
// change.
func (w *memoryWatch) step() (e Event, ok bool, changed <-chan struct{}, err error) {
	m := w.store
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.seen >= m.revision {
		return Event{}, false, m.changed, nil
	}
	// Every change has its own revision, so the history has no gaps.
	first := m.history[0].revision
	if w.seen+1 < first {
		return Event{}, false, nil, apierrors.NewResourceExpired(
			fmt.Sprintf("too old resource version: %d (%d)", w.seen, first))
	}
	for _, c := range m.history[w.seen+1-first:] {
		w.seen = c.revision
		if c.resource == w.resource {
			return c.event, true, nil, nil
		}
	}
	return Event{}, false, m.changed, nil
}

// Stop does nothing: a watch in memory is only a position.
func (w *memoryWatch) Stop() {}
