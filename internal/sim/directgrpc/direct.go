// Package directgrpc carries gRPC calls from a [Client] to a simulated [Server] without the wire: no handshake, no
// frames. What a server sees of its client, and when a call breaks, is as over a connection.
package directgrpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fullstorydev/grpchan/inprocgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/network"
)

// Server has the services and interceptors of a gRPC server.
type Server struct {
	config  *tls.Config
	channel inprocgrpc.Channel
	ctx     context.Context // ends with the server
	cancel  context.CancelCauseFunc
	methods map[string]bool // by full name; complete before the first call

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
	known   map[*x509.Certificate][]*x509.Certificate // verified client certificates, with their chains
}

// NewServer makes a server with that TLS configuration for the wire. It ends with ctx, or by Stop.
func NewServer(ctx context.Context, config *tls.Config, unary grpc.UnaryServerInterceptor, stream grpc.StreamServerInterceptor) *Server {
	s := &Server{config: config, known: map[*x509.Certificate][]*x509.Certificate{}, methods: map[string]bool{}}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.channel.WithServerUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if !s.enter() {
			return nil, errGone
		}
		defer s.running.Done()
		answer, err := unary(seen(ctx), req, info, next)
		return answer, statusOf(err)
	})
	s.channel.WithServerStreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if !s.enter() {
			return errGone
		}
		defer s.running.Done()
		return statusOf(stream(srv, seenStream{ss, seen(ss.Context())}, info, next))
	})
	return s
}

func (s *Server) RegisterService(desc *grpc.ServiceDesc, srv any) {
	s.channel.RegisterService(desc, srv)
	for _, m := range desc.Methods {
		s.methods["/"+desc.ServiceName+"/"+m.MethodName] = true
	}
	for _, m := range desc.Streams {
		s.methods["/"+desc.ServiceName+"/"+m.StreamName] = true
	}
}

// Stop breaks every call and waits for them to end.
func (s *Server) Stop() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errGone)
	s.running.Wait()
}

func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// Door is the door of the server.
func (s *Server) Door() network.Door {
	return network.Door{Context: s.ctx, Certificate: s.config.Certificates[0].Leaf, Channel: s}
}

// has says whether the method exists; for others the server on the wire returns the error.
func (s *Server) has(method string) bool { return s.methods[method] }

// believes says whether a handshake with that client would succeed.
func (s *Server) believes(cert *x509.Certificate) bool {
	now := time.Now
	if s.config.Time != nil {
		now = s.config.Time
	}
	at := now()
	s.mu.Lock()
	defer s.mu.Unlock()
	chain, known := s.known[cert]
	if !known {
		chains, err := cert.Verify(x509.VerifyOptions{Roots: s.config.ClientCAs, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err != nil {
			return false
		}
		chain = chains[0]
		s.known[cert] = chain
	}
	return !slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return at.Before(c.NotBefore) || at.After(c.NotAfter) })
}

// shownKey is the context key of the client's certificate.
type shownKey struct{}

// seen is the context of a handler, with the TLS state of its client.
func seen(ctx context.Context) context.Context {
	state := tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true}
	if cert, _ := inprocgrpc.ClientContext(ctx).Value(shownKey{}).(*x509.Certificate); cert != nil {
		state.PeerCertificates = []*x509.Certificate{cert}
	}
	from := &peer.Peer{Addr: memory{}, AuthInfo: credentials.TLSInfo{State: state, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}}
	return peer.NewContext(ctx, from)
}

type seenStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s seenStream) Context() context.Context { return s.ctx }

type memory struct{}

func (memory) Network() string { return "tcp" }
func (memory) String() string  { return "memory" }

// statusOf is the status that grpc-go's server sends for a handler's error.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	return status.FromContextError(err).Err()
}

var (
	// errGone is a client's error when the connection breaks during a call.
	errGone = status.Error(codes.Unavailable, "error reading from server: EOF")
	// errBroken is a client's error for later calls on it: no client here reconnects (internal/talos, once).
	errBroken = status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: the connection broke"`)
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

func (w *watched) RecvMsg(m any) error {
	err := w.line.said(w.ClientStream.RecvMsg(m))
	if err != nil {
		w.line.end()
		w.kept()
	}
	return err
}

func (w *watched) SendMsg(m any) error { return w.line.said(w.ClientStream.SendMsg(m)) }
