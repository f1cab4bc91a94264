// Package network is the lab's [Network]: addresses on which simulated servers listen and
// clients dial, in memory (inside a synctest bubble) or in the machine's loopback range.
package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// bufferBytes is the buffer size of an in-memory connection; beyond it writers block.
const bufferBytes = 256 << 10

// Network is one lab's network.
type Network struct {
	// Latency is the delay of each answer; set it before anything listens.
	Latency time.Duration

	loopback bool

	mu        sync.Mutex
	listeners map[string]*memListener // by "ip:port"

	underWay sync.WaitGroup // deliveries of delayed connections
}

// Memory returns a network without sockets. It belongs to the bubble that made it.
func Memory() *Network { return &Network{listeners: map[string]*memListener{}} }

// Loopback returns a network of real TCP sockets; addresses must lie in 127.0.0.0/8.
func Loopback() *Network { return &Network{loopback: true} }

// Listen listens on "ip:port". The caller closes the listener, which frees the address.
func (n *Network) Listen(addr string) (net.Listener, error) {
	l, err := n.listen(addr)
	if err != nil || n.Latency == 0 {
		return l, err
	}
	return delayed{l, n}, nil
}

func (n *Network) listen(addr string) (net.Listener, error) {
	if n.loopback {
		return net.Listen("tcp", addr)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, taken := n.listeners[addr]; taken {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: syscall.EADDRINUSE}
	}
	l := &memListener{Queue: NewQueue(), addr: memAddr(addr), net: n}
	n.listeners[addr] = l
	return l, nil
}

// Wait waits until all delayed data was delivered. The servers' ends of all connections must be closed.
func (n *Network) Wait() { n.underWay.Wait() }

func (n *Network) listener(addr string) (*memListener, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l, ok := n.listeners[addr]
	return l, ok
}

type memListener struct {
	*Queue
	addr memAddr
	net  *Network
	once sync.Once
}

func (l *memListener) Addr() net.Addr { return l.addr }

// Accept fails only when the listener is closed, with a TCP listener's error.
func (l *memListener) Accept() (net.Conn, error) {
	conn, err := l.Queue.Accept()
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
	}
	return conn, nil
}

func (l *memListener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.listeners, string(l.addr))
		l.net.mu.Unlock()
	})
	return l.Queue.Close()
}

type memAddr string

func (memAddr) Network() string  { return "tcp" }
func (a memAddr) String() string { return string(a) }

// Dialer is one client's access to the network. Tests kill a client by cutting it: all its connections break, and the
// client can make no new connection.
type Dialer struct {
	net *Network

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
	dials int
}

func (n *Network) Dialer() *Dialer { return &Dialer{net: n, conns: map[net.Conn]struct{}{}} }

// DialContext connects to "host:port" as net.Dialer.DialContext does. For an unassigned
// address it fails at once, without ARP's three seconds.
func (d *Dialer) DialContext(ctx context.Context, netw, addr string) (net.Conn, error) {
	d.mu.Lock()
	cut := d.cut
	d.mu.Unlock()
	if cut {
		return nil, refused(addr)
	}
	conn, err := d.dial(ctx, netw, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cut {
		_ = conn.Close() // not handed out yet
		return nil, refused(addr)
	}
	tracked := &trackedConn{Conn: conn, dialer: d}
	d.conns[tracked] = struct{}{}
	d.dials++
	return tracked, nil
}

// Dials counts the connections that this client has made.
func (d *Dialer) Dials() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dials
}

func (d *Dialer) dial(ctx context.Context, netw, addr string) (net.Conn, error) {
	if d.net.loopback {
		var nd net.Dialer
		return nd.DialContext(ctx, netw, addr)
	}
	l, ok := d.net.listener(addr)
	if !ok {
		return nil, d.net.unanswered(addr)
	}
	up, down := newStream(), newStream()
	if err := l.Hand(ctx, newPipeConn(up, down)); err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return &memConn{Conn: newPipeConn(down, up), remote: l.addr}, nil
}

// Cut breaks all connections of this client and refuses later connections.
func (d *Dialer) Cut() {
	d.mu.Lock()
	d.cut = true
	conns := d.conns
	d.conns = map[net.Conn]struct{}{}
	d.mu.Unlock()
	for c := range conns {
		_ = c.(*trackedConn).Conn.Close() // breaking it is the purpose
	}
}

// Mend undoes Cut: the client can connect again.
func (d *Dialer) Mend() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = false
}

type trackedConn struct {
	net.Conn
	dialer *Dialer
}

func (c *trackedConn) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.conns, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close()
}

type memConn struct {
	net.Conn
	remote memAddr
}

func (c *memConn) RemoteAddr() net.Addr { return c.remote }

// unanswered returns the error of a connection without a listener: a machine with the address refuses it; for an
// unassigned address ARP fails.
func (n *Network) unanswered(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return failed(addr, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for at := range n.listeners {
		if strings.HasPrefix(at, net.JoinHostPort(host, "")) {
			return refused(addr)
		}
	}
	return failed(addr, syscall.EHOSTUNREACH)
}

func refused(addr string) error { return failed(addr, syscall.ECONNREFUSED) }

func failed(addr string, err error) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: memAddr(addr), Err: err}
}

// Queue is a listener that accepts the connections given to Hand.
type Queue struct {
	queue chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewQueue makes a listener without an address. The caller closes it.
func NewQueue() *Queue { return &Queue{queue: make(chan net.Conn), done: make(chan struct{})} }

// Hand waits until Accept takes a connection, the queue is closed or ctx ends.
func (q *Queue) Hand(ctx context.Context, conn net.Conn) error {
	select {
	case q.queue <- conn:
		return nil
	case <-q.done:
		return net.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *Queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.queue:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

func (q *Queue) Close() error {
	q.once.Do(func() { close(q.done) })
	return nil
}

// Addr implements net.Listener.
func (*Queue) Addr() net.Addr { return memAddr("memory") }

// pipeConn is one end of a buffered connection. Its deadlines are exact: after a reset an earlier deadline has no late
// effect. net/http relies on that when it keeps a connection for the next request.
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

// read reads buffered data; if there is none, read returns the channel to wait for.
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

// write writes what fits, and returns the channel to wait for before the rest. As with TCP, a write after the reader
// has closed succeeds without effect, as far as the data fits into the buffer: only the reset, a round trip later,
// reports the close. Data that the other end sent before, maybe the reason, can still be read.
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

// waste does the work of write after the reader has closed.
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

// lastWrite limits how long the delivery of delayed data may take after its connection was closed.
const lastWrite = 5 * time.Second

// delayed delays everything written to its connections, like a longer line with the same bandwidth.
type delayed struct {
	net.Listener
	net *Network
}

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

// delayedConn sends the data that is due, and holds the rest.
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

// Write blocks only while too much data is delayed.
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

// SetWriteDeadline does nothing: a write does not wait for the other side. TLS sets a past deadline before it closes a
// connection; that must not stop the delivery of earlier writes.
func (*delayedConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets only the read deadline.
func (c *delayedConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// Close closes the connection for its user at once, and for the other side when all delayed data was delivered.
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

// deliver sends the data that is due, until the connection is closed and all data was delivered.
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

// next returns the oldest unsent parcel; false: no parcel will come.
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
