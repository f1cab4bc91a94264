package directgrpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"

	"github.com/recast-sh/recast/internal/sim/network"
)

// Client makes calls past the wire where the server has a door and the two
// believe each other, and over a connection where not.
type Client struct {
	dialer *network.Dialer
	config *tls.Config
	cert   *x509.Certificate

	mu    sync.Mutex
	conns map[*grpc.ClientConn]*Server // to whom each leads since its first call; nil: over the wire
}

// NewClient makes a client that has that TLS configuration, with a certificate, on the wire.
func NewClient(d *network.Dialer, config *tls.Config) *Client {
	return &Client{dialer: d, config: config, cert: config.Certificates[0].Leaf, conns: map[*grpc.ClientConn]*Server{}}
}

// Options are for connections that are made with the client's TLS configuration.
func (c *Client) Options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.unary), grpc.WithChainStreamInterceptor(c.stream)}
}

// server is where a connection leads. It stays with the one that it was first
// made to, as a connection does.
func (c *Client) server(cc *grpc.ClientConn) *Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, made := c.conns[cc]
	if made {
		return s
	}
	for other := range c.conns {
		if other.GetState() == connectivity.Shutdown {
			delete(c.conns, other)
		}
	}
	s = c.connect(cc.Target())
	c.conns[cc] = s
	return s
}

func (c *Client) connect(target string) *Server {
	addr := target[strings.LastIndex(target, "/")+1:]
	door, ok := c.dialer.Door(addr)
	if !ok {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	s, is := door.Channel.(*Server)
	if err != nil || !is || !c.dialer.Believes(c.config, door.Certificate, host) || !s.believes(c.cert) {
		return nil
	}
	return s
}

// direct says whether a call goes past the wire: what a machine passes on to another one does not.
func (c *Client) direct(ctx context.Context, cc *grpc.ClientConn, method string) *Server {
	if md, said := metadata.FromOutgoingContext(ctx); said && len(md["node"])+len(md["nodes"]) > 0 {
		return nil
	}
	if s := c.server(cc); s != nil && s.has(method) {
		return s
	}
	return nil
}

func (c *Client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, wire grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	s := c.direct(ctx, cc, method)
	if s == nil {
		return wire(ctx, method, req, reply, cc, opts...)
	}
	l, err := c.begin(ctx, s)
	if err != nil {
		return err
	}
	defer l.end()
	return l.said(s.channel.Invoke(l.ctx, method, req, reply, opts...))
}

func (c *Client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, wire grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s := c.direct(ctx, cc, method)
	if s == nil {
		return wire(ctx, desc, cc, method, opts...)
	}
	l, err := c.begin(ctx, s)
	if err != nil {
		return nil, err
	}
	stream, err := s.channel.NewStream(l.ctx, desc, method, opts...)
	if err != nil {
		l.end()
		return nil, l.said(err)
	}
	context.AfterFunc(ctx, l.end)
	return &watched{stream, l}, nil
}

// line is one call past the wire; it breaks when the client is cut off or the server ends.
type line struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	detach func()
	stop   func() bool
}

func (c *Client) begin(ctx context.Context, s *Server) (*line, error) {
	l := &line{}
	l.ctx, l.cancel = context.WithCancelCause(context.WithValue(ctx, shownKey{}, c.cert))
	detach, ok := c.dialer.Attach(func() { l.cancel(errGone) })
	if !ok || s.ctx.Err() != nil {
		if ok {
			detach()
		}
		l.cancel(errGone)
		return nil, errGone
	}
	l.detach = detach
	l.stop = context.AfterFunc(s.ctx, func() { l.cancel(errGone) })
	return l, nil
}

func (l *line) end() {
	l.detach()
	l.stop()
	l.cancel(nil)
}

// said is a call's end as its client sees it: what breaks the line loses the answer.
func (l *line) said(err error) error {
	if context.Cause(l.ctx) == errGone { //nolint:errorlint // it is that very one
		return errGone
	}
	return err
}

// watched is a stream whose line ends with it.
type watched struct {
	grpc.ClientStream
	line *line
}

// RecvMsg implements grpc.ClientStream.
func (w *watched) RecvMsg(m any) error {
	err := w.line.said(w.ClientStream.RecvMsg(m))
	if err != nil {
		w.line.end()
	}
	return err
}

// SendMsg implements grpc.ClientStream.
func (w *watched) SendMsg(m any) error { return w.line.said(w.ClientStream.SendMsg(m)) }
