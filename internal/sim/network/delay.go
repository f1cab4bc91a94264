package network

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// lastWrite limits how long the delivery of delayed data may take after its connection was
// closed.
const lastWrite = 5 * time.Second

// delayed delays everything written to its connections, like a longer line with the same
// bandwidth.
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

// delayedConn sends what is due, and holds the rest.
type delayedConn struct {
	net.Conn
	latency time.Duration

	mu      sync.Mutex
	changed *sync.Cond
	line    []parcel // delayed data, in order
	held    int      // bytes in line
	closed  bool     // no more writes
	broken  error    // why delivery has failed
}

// parcel is the data of one write.
type parcel struct {
	due   time.Time
	bytes []byte
}

// Write blocks only while too much is delayed.
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

// SetWriteDeadline does nothing: a write does not wait for the other side. TLS sets a past
// deadline before it closes a connection; that must not stop the delivery of earlier
// writes.
func (*delayedConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets only the read deadline.
func (c *delayedConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// Close closes the connection for its user at once, and for the other side when all
// delayed data was delivered.
func (c *delayedConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.changed.Broadcast()
	last := time.Now().Add(c.latency + lastWrite)
	return errors.Join(c.SetReadDeadline(time.Unix(1, 0)), c.Conn.SetWriteDeadline(last)) // wakes pending reads
}

// deliver sends what is due, until the connection is closed and everything was delivered.
func (c *delayedConn) deliver() {
	defer func() { _ = c.Conn.Close() }() // the other side may have closed it first
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

// next is the oldest unsent parcel; false: there will be none.
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
