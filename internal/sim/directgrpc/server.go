// Package directgrpc carries gRPC calls from a [Client] to a simulated [Server] without the wire: no handshake, no
// frames. What a server sees of its client, and when a call breaks, is as over a connection.
package directgrpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"sync"
	"time"

	"github.com/fullstorydev/grpchan/inprocgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
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

// RegisterService implements grpc.ServiceRegistrar.
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
