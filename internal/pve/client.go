// Package pve implements what the domain needs of Proxmox VE with one [Client]. It waits
// for tasks itself, finds out what became of changes whose answer was lost, and turns
// what Proxmox shows into the domain's terms.
package pve

import (
	"context"
	"sync"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/pve/api"
)

// Client talks to one Proxmox cluster. It is safe for concurrent use.
type Client struct {
	conn    *api.Conn
	tasks   *tasks
	changes *changer
	seen    lastSeen
}

var (
	_ cluster.Proxmox = (*Client)(nil)
	_ images.Store    = (*Client)(nil)
	_ images.Shelf    = (*Client)(nil)

	_ images.Importer = (*Client)(nil)
)

// New returns a client without connecting. The caller closes it.
func New(o api.Options) (*Client, error) {
	to, err := api.Connect(o)
	if err != nil {
		return nil, err
	}
	tasks := &tasks{Conn: to}
	return &Client{conn: to, tasks: tasks, changes: &changer{Conn: to, tasks: tasks}}, nil
}

// Close closes the connections to Proxmox. No request may be in flight.
func (c *Client) Close() { c.conn.Close() }

// String names the client without its secret.
func (c *Client) String() string { return c.conn.String() }

// GoString keeps %#v from showing the secret.
func (c *Client) GoString() string { return c.conn.String() }

// Remember makes the client read the token's privileges, the hosts and the storages'
// contents only once, for a command that changes nothing. VMs and tasks are still
// read each time. Call it before the client is used.
func (c *Client) Remember() { c.conn.Remember() }

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
