// Package network is the lab's [Network]: addresses on which simulated servers listen and
// clients dial, in memory (inside a synctest bubble) or in the machine's loopback range.
package network

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
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

// Memory is a network without sockets. It belongs to the bubble that made it.
func Memory() *Network { return &Network{listeners: map[string]*memListener{}} }

// Loopback is a network of real TCP sockets; addresses must lie in 127.0.0.0/8.
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
	l := &memListener{pipeListener: newPipeListener(), addr: memAddr(addr), net: n}
	n.listeners[addr] = l
	return l, nil
}

// Wait waits until all delayed data was delivered. The servers' ends of all connections
// must be closed.
func (n *Network) Wait() { n.underWay.Wait() }

func (n *Network) listener(addr string) (*memListener, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l, ok := n.listeners[addr]
	return l, ok
}

type memListener struct {
	*pipeListener
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
	conn, err := l.pipeListener.Accept()
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
	return l.pipeListener.Close()
}

type memAddr string

func (memAddr) Network() string  { return "tcp" }
func (a memAddr) String() string { return string(a) }

// Dialer is one client's access to the network. Tests kill a client by cutting it: all its
// connections break and no new one is made.
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

// Dialer makes a new client.
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
	conn, err := l.DialContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return &memConn{Conn: conn, remote: l.addr}, nil
}

// Cut breaks all connections of this client and refuses later ones.
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

// Cuts counts the cuts of this client: connections from before the latest one are broken.
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

// unanswered is the error of a connection without a listener: a machine with the address
// refuses it; for an unassigned address ARP fails.
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
