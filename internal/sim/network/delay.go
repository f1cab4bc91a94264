package network

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// lastWrite bounds how long the other side may take what was under way when its
// connection was closed.
const lastWrite = 5 * time.Second

// delayed has everything that is written to its connections arrive later, as
// over a line that is that long. How much goes through it at once is as before.
type delayed struct {
	net.Listener
	net *Network
}

// Accept implements net.Listener.
func (l delayed) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &delayedConn{Conn: conn, latency: l.net.Latency}
	c.changed = sync.NewCond(&c.mu)
	l.net.underWay.Go(c.deliver)
	return c, nil
}

// delayedConn writes at once what is due, and holds the rest.
type delayedConn struct {
	net.Conn
	latency time.Duration

	mu      sync.Mutex
	changed *sync.Cond
	line    []parcel // what is under way, in order
	held    int      // bytes of it
	closed  bool     // nothing more is written
	broken  error    // why nothing arrives any more
}

// parcel is what one write has written.
type parcel struct {
	due   time.Time
	bytes []byte
}

// Write waits only where too much is under way.
func (c *delayedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.held > bufferBytes && c.broken == nil && !c.closed {
		c.changed.Wait()
	}
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case c.broken != nil:
		return 0, c.broken
	}
	c.line = append(c.line, parcel{time.Now().Add(c.latency), slices.Clone(b)})
	c.held += len(b)
	c.changed.Broadcast()
	return len(b), nil
}

// SetWriteDeadline does nothing: a write does not wait for the other side. TLS
// sets one that has passed before it closes a connection, which must not keep
// from arriving what is under way.
func (*delayedConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline is for reading alone.
func (c *delayedConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// Close ends the connection for its user at once, and for the other side when
// what is under way has arrived.
func (c *delayedConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.changed.Broadcast()
	last := time.Now().Add(c.latency + lastWrite)
	return errors.Join(c.SetReadDeadline(time.Unix(1, 0)), c.Conn.SetWriteDeadline(last)) // who reads, reads no more
}

// deliver writes what is due, until the connection is closed and all has arrived.
func (c *delayedConn) deliver() {
	defer func() { _ = c.Conn.Close() }() // the other side may have been the first
	for {
		p, more := c.next()
		if !more {
			return
		}
		time.Sleep(time.Until(p.due))
		_, err := c.Conn.Write(p.bytes)
		c.mu.Lock()
		c.held -= len(p.bytes)
		if err != nil {
			c.broken, c.line = err, nil
		}
		c.changed.Broadcast()
		c.mu.Unlock()
	}
}

// next is what was written first and has not been sent; false: nothing will follow.
func (c *delayedConn) next() (parcel, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.line) == 0 && !c.closed && c.broken == nil {
		c.changed.Wait()
	}
	if len(c.line) == 0 {
		return parcel{}, false
	}
	p := c.line[0]
	c.line = c.line[1:]
	return p, true
}
