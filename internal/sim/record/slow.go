package record

import (
	"context"
	"sync"
	"time"
)

// slowness knows which servers are slow, and until when.
type slowness struct {
	mu      sync.Mutex
	until   map[string]time.Time // by protocol
	changed chan struct{}        // closed at the next change
}

// Slow stalls the servers of a protocol ("proxmox", "talos", "kubernetes") for d: they
// process requests that arrive meanwhile only afterwards, unless the client has gone by
// then. 0 ends it.
func (r *Recorder) Slow(proto string, d time.Duration) {
	s := &r.slow
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = map[string]time.Time{}
	}
	s.until[proto] = time.Now().Add(d)
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *slowness) of(proto string) (left time.Duration, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left = time.Until(s.until[proto]); left <= 0 {
		return 0, nil
	}
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return left, s.changed
}

// Await returns when a server of that protocol may process a request: at once unless it is
// stalled. The error is that of ctx, the client's.
func (r *Recorder) Await(ctx context.Context, proto string) error {
	for {
		left, changed := r.slow.of(proto)
		if left == 0 {
			return nil
		}
		over := time.NewTimer(left)
		select {
		case <-ctx.Done():
			over.Stop()
			return ctx.Err()
		case <-changed:
			over.Stop()
		case <-over.C:
		}
	}
}
