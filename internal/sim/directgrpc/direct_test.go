package directgrpc_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/directgrpc"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
)

const addr = "127.42.7.11:50000"

// pair signs a certificate for addr and for clients; a nil parent makes an authority.
func pair(t *testing.T, name string, parent *tls.Certificate) *tls.Certificate {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP("127.42.7.11")},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IsCA: parent == nil, BasicConstraintsValid: true,
	}
	from, signer := c, key
	if parent != nil {
		from, signer = parent.Leaf, parent.PrivateKey.(*ecdsa.PrivateKey)
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, c, from, key.Public(), signer))(t)
	leaf := must.Get(x509.ParseCertificate(der))(t)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func pool(ca *tls.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(ca.Leaf)
	return p
}

// scene is a health service with a door, and a client of it that counts its connections.
type scene struct {
	server *directgrpc.Server
	dialer *network.Dialer
	health healthpb.HealthClient
	// connect makes another connection.
	connect func() (*grpc.ClientConn, error)
	user    string           // user that the service saw last
	blank   bool             // neither side verifies the other
	shown   string           // certificate that the server presented
	mute    bool             // the server does not accept connections
	now     time.Duration    // by how much the server's clock is ahead
	trusts  *tls.Certificate // CA that the client trusts; nil: the issuer of the server's certificate
	asked   chan bool        // if set, the service receives from it first, and then waits for its client's end
	left    error            // why that wait ended
}

func newScene(t *testing.T, clientCA *tls.Certificate) *scene {
	t.Helper()
	return (&scene{}).open(t, clientCA)
}

func (s *scene) open(t *testing.T, clientCA *tls.Certificate) *scene {
	t.Helper()
	ca := pair(t, "ca", nil)
	if clientCA == nil {
		clientCA = ca
	}
	n := network.Memory()
	l := must.Get(n.Listen(addr))(t)
	see := func(ctx context.Context) {
		p, _ := peer.FromContext(ctx)
		s.user = "nobody"
		if shown := p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates; len(shown) > 0 {
			s.user = shown[0].Subject.CommonName
		}
	}
	conf := &tls.Config{Certificates: []tls.Certificate{*pair(t, "server", ca)}, ClientCAs: pool(ca), ClientAuth: tls.RequireAndVerifyClientCert}
	conf.Time = func() time.Time { return time.Now().Add(s.now) }
	own := &tls.Config{RootCAs: pool(cmp.Or(s.trusts, ca)), Certificates: []tls.Certificate{*pair(t, "someone", clientCA)}}
	if s.blank {
		conf.ClientCAs, conf.ClientAuth = nil, tls.NoClientCert
		own = &tls.Config{
			InsecureSkipVerify: true, //nolint:gosec // like clients of machines in maintenance mode
			VerifyConnection: func(state tls.ConnectionState) error {
				s.shown = state.PeerCertificates[0].Subject.CommonName
				return nil
			},
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				t.Error("no certificate is requested")
				return new(tls.Certificate), nil
			},
		}
	}
	s.server = directgrpc.NewServer(t.Context(), conf,
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			see(ctx)
			if s.asked != nil {
				s.asked <- true
				<-ctx.Done()
				s.left = ctx.Err()
			}
			return next(ctx, req)
		},
		func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			see(ss.Context())
			return next(srv, ss)
		})
	healthpb.RegisterHealthServer(s.server, health.NewServer())
	n.Open(t.Context(), addr, func() (network.Door, bool) { return s.server.Door(), !s.mute })
	s.dialer = n.Dialer()
	options := append(directgrpc.NewClient(s.dialer, own).Options(),
		grpc.WithTransportCredentials(credentials.NewTLS(own)),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return s.dialer.DialContext(ctx, "tcp", to) }))
	s.connect = func() (*grpc.ClientConn, error) { return grpc.NewClient("passthrough:///"+addr, options...) }
	cc := must.Get(s.connect())(t)
	s.health = healthpb.NewHealthClient(cc)
	t.Cleanup(func() {
		_ = cc.Close()
		_ = l.Close()
		s.server.Stop()
	})
	return s
}

// each runs f for every case in a bubble of its own.
func each[T any](t *testing.T, cases map[string]T, f func(t *testing.T, c T)) {
	t.Helper()
	t.Parallel()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { f(t, c) })
		})
	}
}

func TestCallsWithoutAWire(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		s := newScene(t, nil)
		answer, err := s.health.Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_SERVING || s.user != "someone" {
			t.Errorf("%v, %v, seen as %q", answer, err, s.user)
		}
		_, err = s.health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"})
		must.Equal(t, "of an unknown service", codes.NotFound, status.Code(err))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch := must.Get(s.health.Watch(ctx, &healthpb.HealthCheckRequest{}))(t)
		if first, err := watch.Recv(); err != nil || first.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("watched %v, %v", first, err)
		}
		cancel()
		must.Equal(t, "after its end", codes.Canceled, status.Code(must.Err(watch.Recv())))
		must.Equal(t, "connections were made", 0, s.dialer.Dials())
	})
}

// TestTheLineBreaks: when the server ends, and when the client's network is cut.
func TestTheLineBreaks(t *testing.T) {
	each(t, map[string]func(*scene){
		"the server stops":      func(s *scene) { s.server.Stop() },
		"the client is cut off": func(s *scene) { s.dialer.Cut() },
		"for a moment": func(s *scene) {
			s.dialer.Cut()
			s.dialer.Mend()
		},
	}, func(t *testing.T, breaks func(*scene)) {
		s := newScene(t, nil)
		watch := must.Get(s.health.Watch(t.Context(), &healthpb.HealthCheckRequest{}))(t)
		must.Get(watch.Recv())(t)
		breaks(s)
		must.Equal(t, "a stream on its way", codes.Unavailable, status.Code(must.Err(watch.Recv())))
		if _, err := s.health.Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("the next call: %v", err)
		}
	})
}

// TestAStreamIsLeftUnread: its finalizer must not end it outside of the bubble.
func TestAStreamIsLeftUnread(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		s := newScene(t, nil)
		must.Get(s.health.Watch(t.Context(), &healthpb.HealthCheckRequest{}))(t)
		synctest.Wait()
		for range 3 {
			runtime.GC() // finalizers run in their own goroutine after the first cycle that finds them
			time.Sleep(time.Second)
		}
	})
}

// TestNeitherSideIsVerified: an unverified certificate is noted, and none is requested.
func TestNeitherSideIsVerified(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		s := (&scene{blank: true}).open(t, nil)
		if _, err := s.health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || s.user != "nobody" || s.shown != "server" {
			t.Errorf("%v, seen as %q, shown %q", err, s.user, s.shown)
		}
		must.Equal(t, "connections were made", 0, s.dialer.Dials())
	})
}

// TestACallIsInterrupted at either end or by a cut: the service sees it, and the answer is lost.
func TestACallIsInterrupted(t *testing.T) {
	type interruption struct {
		breaks func(s *scene, hangUp func())
		want   codes.Code
	}
	each(t, map[string]interruption{
		"the client hangs up": {func(_ *scene, hangUp func()) { hangUp() }, codes.Canceled},
		"its patience ends":   {func(*scene, func()) {}, codes.DeadlineExceeded},
		"its network is cut":  {func(s *scene, _ func()) { s.dialer.Cut() }, codes.Unavailable},
		"and mended":          {func(s *scene, _ func()) { s.dialer.Cut(); s.dialer.Mend() }, codes.Unavailable},
		"the server stops":    {func(s *scene, _ func()) { s.server.Stop() }, codes.Unavailable},
	}, func(t *testing.T, c interruption) {
		s := (&scene{asked: make(chan bool)}).open(t, nil)
		ctx, hangUp := context.WithTimeout(t.Context(), time.Minute)
		defer hangUp()
		go func() {
			<-s.asked
			c.breaks(s, hangUp)
		}()
		_, err := s.health.Check(ctx, &healthpb.HealthCheckRequest{})
		synctest.Wait()
		if status.Code(err) != c.want || s.left == nil {
			t.Errorf("the client: %v, want %s; the service: %v", err, c.want, s.left)
		}
	})
}

// TestErrorsComeFromTheWire: for untrusted or silent servers the error comes from the wire.
func TestErrorsComeFromTheWire(t *testing.T) {
	each(t, map[string]func(*testing.T) *scene{
		"the client is another's":      func(t *testing.T) *scene { return newScene(t, pair(t, "others", nil)) },
		"the server is another's":      func(t *testing.T) *scene { return (&scene{trusts: pair(t, "others", nil)}).open(t, nil) },
		"the server is mute":           func(t *testing.T) *scene { return (&scene{mute: true}).open(t, nil) },
		"its clock says: not any more": func(t *testing.T) *scene { return (&scene{now: 2 * time.Hour}).open(t, nil) },
	}, func(t *testing.T, open func(*testing.T) *scene) {
		s := open(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // connections are not accepted
		defer cancel()
		if _, err := s.health.Check(ctx, &healthpb.HealthCheckRequest{}); err == nil || s.user != "" {
			t.Errorf("%v, seen as %q", err, s.user)
		}
	})
}

// TestACertificateEnds between two connections: the server verifies it for each.
func TestACertificateEnds(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		s := newScene(t, nil)
		check := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			cc, err := s.connect()
			if err != nil {
				t.Fatal(err)
			}
			defer cc.Close()
			_, err = healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{})
			return err
		}
		must.Do(t, check())
		s.now = 2 * time.Hour
		must.Equal(t, "it is believed still", false, check() == nil)
	})
}
