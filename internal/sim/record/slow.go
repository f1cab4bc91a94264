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

// Slow makes the servers of a protocol ("proxmox", "talos", "kubernetes") slow for
// that long: what they are asked meanwhile they take up when it is over, unless the
// client has gone by then. 0 ends it.
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

// Await returns when a server of that protocol takes a request up, at once unless
// it is slow. The error is that of ctx, whose client has gone.
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
