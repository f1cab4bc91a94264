package network

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"time"
)

// Door is a server as those reach it who leave the wire out: its handler is
// called, and nothing is encrypted, framed or parsed.
type Door struct {
	Handler     http.Handler
	Context     context.Context   // of its requests, which break off when it ends; nil: the listener's
	Certificate *x509.Certificate // what it shows of itself; nil: it speaks plain HTTP
	HTTP2       bool              // with those who ask for it
	Channel     any               // of a server that speaks another protocol; Handler is nil
}

// Door is that of whoever listens on "ip:port" now, unless the client is cut off.
func (d *Dialer) Door(addr string) (Door, bool) {
	l, ok := d.listening(addr)
	if !ok {
		return Door{}, false
	}
	return l.behind()
}

// Open makes a server in memory reachable past the wire for as long as it listens
// on "ip:port" and ctx lasts. find is asked with each request, and may say that there is nobody.
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

// behind is the listener's door; its context is set.
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

// Direct carries requests past the wire where the server has a door and the two
// believe each other, and through inner where not: then it says what is the matter.
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

// enter finds the door to a request's server, and what is known there of the client.
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

// Shown is what a server that asks for it learns of a client with that configuration.
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

// belief is one question whether a client believes a certificate.
type belief struct {
	config *tls.Config
	cert   *x509.Certificate
	name   string
}

// Believes says whether a client with that configuration would take the certificate for that host's.
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

// verify is what a handshake does; nothing is in the chain where only the certificate itself counts.
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

// listening finds who listens on an address, unless the client is cut off.
func (d *Dialer) listening(addr string) (*memListener, bool) {
	d.mu.Lock()
	cut := d.cut
	d.mu.Unlock()
	if cut {
		return nil, false
	}
	return d.net.listener(addr)
}

// errCut is what a client sees of its requests when its network is taken away.
var errCut = &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}

// Attach has broken called when the client is cut off, until detach is; not ok: it is already.
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
