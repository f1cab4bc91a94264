package api

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
)

// cacheable reports whether an answer stays valid while a command runs that changes
// nothing.
func cacheable(path string) bool {
	switch path {
	case "/cluster/status", "/nodes", "/storage":
		return true
	}
	if strings.HasPrefix(path, "/access/") {
		return true
	}
	host, ok := strings.CutPrefix(path, "/nodes/")
	_, what, below := strings.Cut(host, "/")
	return ok && below && (strings.HasPrefix(what, "storage") || strings.HasPrefix(what, "disks/"))
}

// answer is one that others may wait for.
type answer struct {
	done chan struct{} // closed when the rest is known
	data json.RawMessage
	err  error
}

// memory holds answers by path. Errors are not shared; each waiter retries.
type memory struct {
	mu      sync.Mutex
	answers map[string]*answer
}

func (m *memory) get(ctx context.Context, path string, out any, ask func(out any) error) error {
	for {
		m.mu.Lock()
		a, begun := m.answers[path]
		if !begun {
			a = &answer{done: make(chan struct{})}
			m.answers[path] = a
		}
		m.mu.Unlock()
		if !begun {
			return m.ask(path, a, out, ask)
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if a.err == nil {
			return json.Unmarshal(a.data, out)
		}
	}
}

func (m *memory) ask(path string, a *answer, out any, ask func(out any) error) error {
	defer close(a.done)
	var raw json.RawMessage
	if a.err = ask(&raw); a.err != nil {
		m.mu.Lock()
		delete(m.answers, path)
		m.mu.Unlock()
		return a.err
	}
	a.data = raw
	return json.Unmarshal(raw, out)
}
