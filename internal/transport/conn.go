package transport

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// Dial makes a connection, as net.Dialer.DialContext does.
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// BoundedDial bounds each attempt to make a connection, and for how long the peer may accept no data. That bounds the
// sending of a body of any size: an ISO may take an hour.
func BoundedDial(dial Dial, connect, stall time.Duration) Dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, connect)
		defer cancel()
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &stallConn{Conn: conn, stall: stall}, nil
	}
}

// stallConn fails a write that makes no progress. Reads are not bounded here:
// net/http already reads the answer while a body is still being sent.
type stallConn struct {
	net.Conn
	stall time.Duration
	mu    sync.Mutex
	limit time.Time // set by the owner; zero: none
	dead  error     // why nothing more can be written
}

// SetWriteDeadline implements net.Conn. It applies in addition to the bound.
func (c *stallConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = t
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline implements net.Conn.
func (c *stallConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *stallConn) Write(p []byte) (written int, err error) {
	// In pieces, each with the whole bound: one large write may take long on a slow line.
	const piece = 64 << 10
	for written < len(p) && err == nil {
		var n int
		if err = c.begin(); err != nil {
			break
		}
		n, err = c.Conn.Write(p[written:min(written+piece, len(p))])
		written += n
	}
	c.end(err)
	return written, err
}

// begin sets the deadline of one piece, unless the connection is dead.
func (c *stallConn) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead != nil {
		return c.dead
	}
	deadline := time.Now().Add(c.stall)
	if !c.limit.IsZero() && c.limit.Before(deadline) {
		deadline = c.limit
	}
	return c.Conn.SetWriteDeadline(deadline)
}

// end records an error. TLS sends a close alert even on a failed connection, which
// would wait for the peer once more.
func (c *stallConn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.dead = err
	}
}
