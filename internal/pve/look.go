package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// look reads many VMs and reads only once what Proxmox keeps in one place for all of
// them. It is dropped with its answers afterwards, so that later reads are fresh.
type look struct {
	*Client

	mu    sync.Mutex
	reads map[string]*onceRead
}

// once returns what read returns, shared by all callers in the look that use that
// name.
func once[T any](ctx context.Context, l *look, name string, read func() (T, error)) (T, error) {
	l.mu.Lock()
	r, begun := l.reads[name]
	if !begun {
		r = &onceRead{done: make(chan struct{})}
		if l.reads == nil {
			l.reads = map[string]*onceRead{}
		}
		l.reads[name] = r
	}
	l.mu.Unlock()
	if !begun {
		r.answer, r.err = read()
		close(r.done)
	}
	select {
	case <-r.done:
		return r.answer.(T), r.err
	case <-ctx.Done():
		return *new(T), context.Cause(ctx)
	}
}

// onceRead is an answer that others may wait for.
type onceRead struct {
	done   chan struct{} // closed when the rest is known
	answer any
	err    error
}

// getDated is get, and returns the answer's Date header; zero if there is none.
func (c *Client) getDated(ctx context.Context, path string, out any) (time.Time, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, http.NoBody)
	if err != nil {
		return time.Time{}, err
	}
	req.Header.Set("Authorization", c.auth)
	req.Header.Set("User-Agent", userAgent)
	resp, err := c.http.Do(req)
	if err != nil {
		return time.Time{}, c.clean(http.MethodGet, path, err)
	}
	answer := struct {
		Data any `json:"data"`
	}{out}
	if err := errors.Join(json.NewDecoder(resp.Body).Decode(&answer), resp.Body.Close()); err != nil {
		return time.Time{}, fmt.Errorf("GET %s: read the answer: %w", path, err)
	}
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return time.Time{}, nil
	}
	return date, nil
}
