// Package network is the lab's [Network]: addresses on which simulated servers listen and
// clients dial, in memory (inside a synctest bubble) or in the machine's loopback range.
package network

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
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

	mu   sync.Mutex
	door func() (Door, bool) // nil: none
	ctx  context.Context     // of requests through the door; ends with the listener
	end  context.CancelFunc
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
		l.mu.Lock()
		end := l.end
		l.mu.Unlock()
		if end != nil {
			end()
		}
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
	cuts  int // number of cuts
	conns map[net.Conn]struct{}
	dials int

	direct   map[int]func() // called for direct exchanges when the client is cut
	attached int
	believed map[belief][]*x509.Certificate
}

func (n *Network) Dialer() *Dialer {
	return &Dialer{net: n, conns: map[net.Conn]struct{}{}, direct: map[int]func(){}, believed: map[belief][]*x509.Certificate{}}
}

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
	d.cuts++
	conns := d.conns
	d.conns = map[net.Conn]struct{}{}
	direct := slices.Collect(maps.Values(d.direct))
	d.mu.Unlock()
	for _, broken := range direct {
		broken()
	}
	for c := range conns {
		_ = c.(*trackedConn).Conn.Close() // breaking it is the purpose
	}
}

// Cuts counts the cuts of this client: connections from before the latest cut are broken.
func (d *Dialer) Cuts() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cuts
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

// protocol is the protocol that a connection would use for an exchange, and its client's errors when the connection
// breaks. TestTheDoorMatchesTheWire compares them.
type protocol struct {
	name  string
	major int
	// aborted is the error after a handler's abort; torn is the error after an abort once the answer has begun. gone
	// is the error after the server has ended.
	aborted, torn, gone error
}

// errReset is http2.StreamError of a stream that the server has reset (net/http, http2serverConn.handlerPanicked).
var errReset = errors.New("stream error: stream ID 1; INTERNAL_ERROR; received from peer")

var (
	http1 = protocol{name: "HTTP/1.1", major: 1, aborted: io.EOF, torn: io.ErrUnexpectedEOF, gone: io.EOF}
	http2 = protocol{name: "HTTP/2.0", major: 2, aborted: errReset, torn: errReset, gone: io.ErrUnexpectedEOF}
)

// spoken returns the protocol that client and server negotiate. A client with its own dialer asks for HTTP/2 only if
// told so (net/http, Transport.onceSetNextProtoDefaults).
func spoken(client *http.Transport, door Door) protocol {
	if door.HTTP2 && door.Certificate != nil && client.ForceAttemptHTTP2 {
		return http2
	}
	return http1
}

func (p protocol) agent() string {
	if p.major == 2 {
		return "Go-http-client/2.0"
	}
	return "Go-http-client/1.1"
}
