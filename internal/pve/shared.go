package pve

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// sharedFor is how old an answer about the whole cluster may be that is asked for
// again: many VMs are looked at at once, and each wants the same of it.
const sharedFor = time.Second

// shared are the answers about the whole cluster that were asked for of late.
type shared struct {
	mu      sync.Mutex
	answers map[string]*sharedAnswer
}

type sharedAnswer struct {
	asked time.Time
	done  chan struct{} // closed when there is one
	raw   json.RawMessage
	err   error
}

// of is the answer to a path; mine says that the caller has to ask for it.
func (s *shared) of(path string) (a *sharedAnswer, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answers == nil {
		s.answers = map[string]*sharedAnswer{}
	}
	if a := s.answers[path]; a != nil && time.Since(a.asked) < sharedFor {
		return a, false
	}
	a = &sharedAnswer{asked: time.Now(), done: make(chan struct{})}
	s.answers[path] = a
	return a, true
}

// getShared is get for what is the same whoever asks for it. An error is nobody
// else's: whoever waited for the answer asks himself.
func (c *Client) getShared(ctx context.Context, path string, out any) error {
	a, mine := c.shared.of(path)
	if mine {
		a.err = c.get(ctx, path, &a.raw)
		close(a.done)
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case a.err != nil && mine:
		return a.err
	case a.err != nil:
		return c.get(ctx, path, out)
	}
	return json.Unmarshal(a.raw, out)
}
