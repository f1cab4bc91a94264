package network

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"time"
)

// Door is direct access to a server, without the wire: its handler is called, and nothing
// is encrypted, framed or parsed.
type Door struct {
	Handler     http.Handler
	Context     context.Context   // base of its requests' contexts; nil: the listener's
	Certificate *x509.Certificate // the server's; nil: plain HTTP
	HTTP2       bool              // for clients that ask for it
	Channel     any               // for servers of another protocol; Handler is nil
}

// Door is that of the server that listens on "ip:port" now, unless the client is cut off.
func (d *Dialer) Door(addr string) (Door, bool) {
	l, ok := d.listening(addr)
	if !ok {
		return Door{}, false
	}
	return l.behind()
}

// Open gives an in-memory server a door while it listens on "ip:port" and ctx lasts. find is
// called with each request, and may say that no server is there.
func (n *Network) Open(ctx context.Context, addr string, find func() (Door, bool)) {
	if n.loopback || n.Latency > 0 {
		return
	}
	if l, ok := n.listener(addr); ok {
		l.mu.Lock()
		l.door = find
		l.ctx, l.end = context.WithCancel(ctx)
		l.mu.Unlock()
	}
}

// behind is the listener's door, with its context.
func (l *memListener) behind() (Door, bool) {
	l.mu.Lock()
	find, ctx := l.door, l.ctx
	l.mu.Unlock()
	if find == nil {
		return Door{}, false
	}
	d, ok := find()
	if d.Context == nil {
		d.Context = ctx
	}
	return d, ok
}

// Direct sends requests through the server's door if there is one and both sides trust
// each other. Otherwise it sends them through inner, which returns the proper error.
func (d *Dialer) Direct(inner http.RoundTripper) http.RoundTripper {
	if wire, ok := inner.(*http.Transport); ok && !d.net.loopback {
		return &direct{dialer: d, wire: wire}
	}
	return inner
}

type direct struct {
	dialer *Dialer
	wire   *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *direct) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Context().Err() != nil {
		return t.wire.RoundTrip(req)
	}
	door, state, ok := t.enter(req)
	if !ok {
		return t.wire.RoundTrip(req)
	}
	return newExchange(t.dialer, door, spoken(t.wire, door)).carry(req, state, t.wire.ResponseHeaderTimeout)
}

// enter finds the door for a request, and the TLS state that the server would see of the
// client.
func (t *direct) enter(req *http.Request) (door Door, state *tls.ConnectionState, ok bool) {
	if door, ok = t.dialer.Door(addressOf(req)); !ok || door.Handler == nil || (req.URL.Scheme == "https") != (door.Certificate != nil) {
		return Door{}, nil, false
	}
	if door.Certificate == nil {
		return door, nil, true
	}
	config := t.wire.TLSClientConfig
	if config == nil || !t.dialer.Believes(config, door.Certificate, req.URL.Hostname()) {
		return Door{}, nil, false
	}
	state, err := Shown(config)
	return door, state, err == nil
}

func addressOf(req *http.Request) string {
	if req.URL.Port() != "" {
		return req.URL.Host
	}
	port := "80"
	if req.URL.Scheme == "https" {
		port = "443"
	}
	return net.JoinHostPort(req.URL.Hostname(), port)
}

// Shown is what a server that asks for a client certificate sees of a client with that
// config.
func Shown(config *tls.Config) (*tls.ConnectionState, error) {
	state := &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true}
	var own *tls.Certificate
	switch {
	case config.GetClientCertificate != nil:
		var err error
		if own, err = config.GetClientCertificate(&tls.CertificateRequestInfo{Version: tls.VersionTLS13}); err != nil {
			return nil, err
		}
	case len(config.Certificates) > 0:
		own = &config.Certificates[0]
	}
	if own == nil || len(own.Certificate) == 0 {
		return state, nil
	}
	if own.Leaf != nil {
		state.PeerCertificates = []*x509.Certificate{own.Leaf}
		return state, nil
	}
	leaf, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		return nil, err
	}
	state.PeerCertificates = []*x509.Certificate{leaf}
	return state, nil
}

// belief is the key of a cached trust decision.
type belief struct {
	config *tls.Config
	cert   *x509.Certificate
	name   string
}

// Believes says whether a client with that config would accept the certificate for that host.
func (d *Dialer) Believes(config *tls.Config, cert *x509.Certificate, host string) bool {
	if config.ServerName != "" {
		host = config.ServerName
	}
	about, now := belief{config, cert, host}, time.Now()
	d.mu.Lock()
	chain, known := d.believed[about]
	d.mu.Unlock()
	if !known {
		var err error
		if chain, err = verify(config, cert, host, now); err != nil {
			return false
		}
		d.mu.Lock()
		d.believed[about] = chain
		d.mu.Unlock()
	}
	for _, c := range chain {
		if now.Before(c.NotBefore) || now.After(c.NotAfter) {
			return false
		}
	}
	return true
}

// verify does what a handshake does; the chain is empty if only the certificate itself counts.
func verify(config *tls.Config, cert *x509.Certificate, host string, now time.Time) ([]*x509.Certificate, error) {
	if config.VerifyConnection != nil {
		if err := config.VerifyConnection(tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}); err != nil {
			return nil, err
		}
	}
	if config.InsecureSkipVerify {
		return nil, nil
	}
	chains, err := cert.Verify(x509.VerifyOptions{Roots: config.RootCAs, DNSName: host, CurrentTime: now})
	if err != nil {
		return nil, err
	}
	return chains[0], nil
}

// listening finds the listener on an address, unless the client is cut off.
func (d *Dialer) listening(addr string) (*memListener, bool) {
	d.mu.Lock()
	cut := d.cut
	d.mu.Unlock()
	if cut {
		return nil, false
	}
	return d.net.listener(addr)
}

// errCut is the error of requests of a client whose network was cut.
var errCut = &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}

// Attach calls broken when the client is cut off, until detach is called; not ok: it is cut
// off already.
func (d *Dialer) Attach(broken func()) (detach func(), ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cut {
		return nil, false
	}
	d.attached++
	n := d.attached
	d.direct[n] = broken
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.direct, n)
	}, true
}
