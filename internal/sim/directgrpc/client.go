package directgrpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"runtime"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"

	"github.com/recast-sh/recast/internal/sim/network"
)

// Client makes calls directly if the server has a door and both sides trust each other, else over a connection.
type Client struct {
	dialer *network.Dialer
	config *tls.Config

	mu    sync.Mutex
	conns map[*grpc.ClientConn]way
}

// way is the route of a connection, fixed by its first call.
type way struct {
	server *Server           // nil: over the wire
	shown  *x509.Certificate // the client's; nil: none
	cuts   int               // the client's cuts at that time
}

// NewClient makes a client with that TLS configuration for the wire.
func NewClient(d *network.Dialer, config *tls.Config) *Client {
	return &Client{dialer: d, config: config, conns: map[*grpc.ClientConn]way{}}
}

// Options are for connections with the client's TLS configuration.
func (c *Client) Options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.unary), grpc.WithChainStreamInterceptor(c.stream)}
}

// way is a connection's route. Like a connection it stays with the server that it was first made to.
func (c *Client) way(cc *grpc.ClientConn) way {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, made := c.conns[cc]
	if made {
		return w
	}
	for other := range c.conns {
		if other.GetState() == connectivity.Shutdown {
			delete(c.conns, other)
		}
	}
	w = c.connect(cc.Target())
	c.conns[cc] = w
	return w
}

func (c *Client) connect(target string) way {
	cuts := c.dialer.Cuts()
	addr := target[strings.LastIndex(target, "/")+1:]
	door, ok := c.dialer.Door(addr)
	if !ok {
		return way{}
	}
	host, _, err := net.SplitHostPort(addr)
	s, is := door.Channel.(*Server)
	if err != nil || !is || door.Certificate == nil || !c.dialer.Believes(c.config, door.Certificate, host) {
		return way{}
	}
	if s.config.ClientAuth == tls.NoClientCert {
		return way{server: s, cuts: cuts}
	}
	state, err := network.Shown(c.config)
	if err != nil || len(state.PeerCertificates) == 0 || !s.believes(state.PeerCertificates[0]) {
		return way{}
	}
	return way{server: s, shown: state.PeerCertificates[0], cuts: cuts}
}

// direct says whether a call is made directly: calls that a machine forwards to another are not.
func (c *Client) direct(ctx context.Context, cc *grpc.ClientConn, method string) (w way, ok bool) {
	if md, said := metadata.FromOutgoingContext(ctx); said && len(md["node"])+len(md["nodes"]) > 0 {
		return way{}, false
	}
	w = c.way(cc)
	return w, w.server != nil && w.server.has(method)
}

func (c *Client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, wire grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	w, ok := c.direct(ctx, cc, method)
	if !ok {
		return wire(ctx, method, req, reply, cc, opts...)
	}
	l, err := c.begin(ctx, w)
	if err != nil {
		return err
	}
	defer l.end()
	return l.said(w.server.channel.Invoke(l.ctx, method, req, reply, opts...))
}

func (c *Client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, wire grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	w, ok := c.direct(ctx, cc, method)
	if !ok {
		return wire(ctx, desc, cc, method, opts...)
	}
	l, err := c.begin(ctx, w)
	if err != nil {
		return nil, err
	}
	stream, err := w.server.channel.NewStream(l.ctx, desc, method, opts...)
	if err != nil {
		l.end()
		return nil, l.said(err)
	}
	// If a stream is not read to its end, its finalizer would end it outside of its bubble: it
	// is kept until its line has ended.
	kept := context.AfterFunc(ctx, func() {
		l.end()
		runtime.KeepAlive(stream)
	})
	return &watched{stream, l, kept}, nil
}

// line is one direct call; it breaks when the client is cut off or the server ends.
type line struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	detach func()
	stop   func() bool
}

func (c *Client) begin(ctx context.Context, w way) (*line, error) {
	l := &line{}
	l.ctx, l.cancel = context.WithCancelCause(context.WithValue(ctx, shownKey{}, w.shown))
	detach, ok := c.dialer.Attach(func() { l.cancel(errGone) })
	if !ok || w.server.ctx.Err() != nil || c.dialer.Cuts() != w.cuts {
		if ok {
			detach()
		}
		l.cancel(errBroken)
		return nil, errBroken
	}
	l.detach = detach
	l.stop = context.AfterFunc(w.server.ctx, func() { l.cancel(errGone) })
	return l, nil
}

func (l *line) end() {
	l.detach()
	l.stop()
	l.cancel(nil)
}

// said is a call's result for its client: a broken line loses the answer.
func (l *line) said(err error) error {
	if context.Cause(l.ctx) == errGone { //nolint:errorlint // identity is intended
		return errGone
	}
	return err
}

// watched is a stream that ends its line.
type watched struct {
	grpc.ClientStream
	line *line
	kept func() bool // until it is called, or the line ends with its client's context
}

// RecvMsg implements grpc.ClientStream.
func (w *watched) RecvMsg(m any) error {
	err := w.line.said(w.ClientStream.RecvMsg(m))
	if err != nil {
		w.line.end()
		w.kept()
	}
	return err
}

// SendMsg implements grpc.ClientStream.
func (w *watched) SendMsg(m any) error { return w.line.said(w.ClientStream.SendMsg(m)) }
