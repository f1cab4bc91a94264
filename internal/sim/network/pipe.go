package network

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// pipeListener passes the server's ends of in-memory connections to Accept.
type pipeListener struct {
	queue chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{queue: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) DialContext(ctx context.Context) (net.Conn, error) {
	up, down := newStream(), newStream()
	select {
	case l.queue <- newPipeConn(up, down):
		return newPipeConn(down, up), nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pipeConn is one end of a buffered connection. Its deadlines are exact: after a reset an
// earlier deadline has no late effect. net/http relies on that when it keeps a connection
// for the next request.
type pipeConn struct {
	in, out               *stream
	readLimit, writeLimit *deadline
	closed                chan struct{}
	once                  sync.Once
}

var _ net.Conn = (*pipeConn)(nil)

func newPipeConn(in, out *stream) *pipeConn {
	return &pipeConn{in: in, out: out, readLimit: newDeadline(), writeLimit: newDeadline(), closed: make(chan struct{})}
}

func (c *pipeConn) Read(b []byte) (int, error) {
	for {
		n, changed, err := c.in.read(b)
		if changed == nil {
			return n, err
		}
		if err := c.wait(changed, c.readLimit); err != nil {
			return 0, err
		}
	}
}

func (c *pipeConn) Write(b []byte) (written int, err error) {
	for {
		if err := c.wait(always(), c.writeLimit); err != nil {
			return written, err
		}
		n, changed, err := c.out.write(b[written:])
		written += n
		if err != nil || written == len(b) {
			return written, err
		}
		if err := c.wait(changed, c.writeLimit); err != nil {
			return written, err
		}
	}
}

// wait returns nil when changed is closed before the deadline and before this end is closed.
func (c *pipeConn) wait(changed <-chan struct{}, d *deadline) error {
	over := d.wait()
	select {
	case <-c.closed:
		return net.ErrClosed
	case <-over:
		return os.ErrDeadlineExceeded
	default:
	}
	select {
	case <-c.closed:
		return net.ErrClosed
	case <-over:
		return os.ErrDeadlineExceeded
	case <-changed:
		return nil
	}
}

func (c *pipeConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.in.end()
		c.out.end()
	})
	return nil
}

func (c *pipeConn) LocalAddr() net.Addr  { return memAddr("memory") }
func (c *pipeConn) RemoteAddr() net.Addr { return memAddr("memory") }

func (c *pipeConn) SetDeadline(t time.Time) error {
	c.readLimit.set(t)
	c.writeLimit.set(t)
	return nil
}

func (c *pipeConn) SetReadDeadline(t time.Time) error  { c.readLimit.set(t); return nil }
func (c *pipeConn) SetWriteDeadline(t time.Time) error { c.writeLimit.set(t); return nil }

func always() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// roundTrip is the delay until a write to a closed reader fails.
const roundTrip = time.Millisecond

// stream is one direction of a connection.
type stream struct {
	mu      sync.Mutex
	buf     []byte
	ended   bool
	ignored time.Time     // time of the first write after the reader closed
	wasted  int           // bytes written after the reader closed
	changed chan struct{} // closed and renewed with every change
}

func newStream() *stream { return &stream{changed: make(chan struct{})} }

func (s *stream) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// read reads what is buffered; if nothing is, it returns the channel to wait for.
func (s *stream) read(b []byte) (n int, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.buf) > 0:
		n = copy(b, s.buf)
		s.buf = s.buf[n:]
		s.signal()
		return n, nil, nil
	case s.ended:
		return 0, nil, io.EOF
	}
	return 0, s.changed, nil
}

// write writes what fits, and returns the channel to wait for before the rest. As with TCP
// a write after the reader has closed succeeds without effect, as far as it fits into the
// buffer: only the reset, a round trip later, reports the close. Data that the other end
// sent before, maybe the reason, can still be read.
func (s *stream) write(b []byte) (n int, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return s.waste(b)
	}
	n = min(len(b), bufferBytes-len(s.buf))
	s.buf = append(s.buf, b[:n]...)
	if n > 0 {
		s.signal()
	}
	return n, s.changed, nil
}

// waste is write after the reader has closed.
func (s *stream) waste(b []byte) (n int, answered <-chan struct{}, err error) {
	if s.ignored.IsZero() {
		s.ignored = time.Now()
	}
	left := roundTrip - time.Since(s.ignored)
	if left <= 0 {
		return 0, nil, syscall.EPIPE
	}
	n = min(len(b), bufferBytes-s.wasted)
	s.wasted += n
	if n == len(b) {
		return n, nil, nil
	}
	over := make(chan struct{})
	time.AfterFunc(left, func() { close(over) })
	return n, over, nil
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.signal()
}

// deadline is a deadline as in net.Pipe.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{}
}

func newDeadline() *deadline { return &deadline{over: make(chan struct{})} }

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // the timer's function is about to close it
	}
	d.timer = nil
	passed := false
	select {
	case <-d.over:
		passed = true
	default:
	}
	left := time.Until(t)
	switch {
	case t.IsZero() || left > 0:
		if passed {
			d.over = make(chan struct{})
		}
		if over := d.over; !t.IsZero() {
			d.timer = time.AfterFunc(left, func() { close(over) })
		}
	case !passed:
		close(d.over)
	}
}

func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}
