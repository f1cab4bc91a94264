package pve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim/network"
)

const (
	testSecret = "01234567-89ab-cdef-0123-456789abcdef"
	testToken  = "recast@pve!roll=" + testSecret
	// testUPID names a task on pve1.
	testUPID = "UPID:pve1:0000ABCD:00012345:386D4380:qmdestroy:101:recast@pve!roll:"
)

// route answers one kind of request.
type route func(w http.ResponseWriter, r *http.Request)

// fake is a Proxmox node that answers only what a test tells it to.
type fake struct {
	mu     sync.Mutex
	routes map[string][]route // "GET /path" -> answers in turn, the last one repeats
	seen   []string
}

func (f *fake) on(request string, answers ...route) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.routes[request] = answers
}

func (f *fake) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.seen...)
}

// changes are the requests other than reads.
func changes(requests []string) []string {
	return slices.DeleteFunc(requests, func(r string) bool { return strings.HasPrefix(r, "GET ") })
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Method + " " + strings.TrimPrefix(r.URL.RequestURI(), apiPrefix)
	f.mu.Lock()
	f.seen = append(f.seen, key)
	answers := f.routes[key]
	if len(answers) > 1 {
		f.routes[key] = answers[1:]
	}
	f.mu.Unlock()
	if len(answers) == 0 {
		raw("501 Method '"+key+"' not implemented", "")(w, r)
		return
	}
	answers[0](w, r)
}

// data answers with success.
func data(json string) route {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data":`+json+`}`)
	}
}

// raw answers with a status line as written, which net/http cannot.
func raw(status, body string) route {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 "+status+"\r\nConnection: close\r\n\r\n"+body)
	}
}

// lost breaks the connection instead of answering.
func lost(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// after answers late, unless the client is gone by then.
func after(d time.Duration, then route) route {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(d):
			then(w, r)
		}
	}
}

// site is a network with fake Proxmox nodes that share one certificate.
type site struct {
	net  *network.Network
	cert tls.Certificate
}

func newSite(t *testing.T) *site {
	t.Helper()
	return &site{net: network.Memory(), cert: newCertificate(t)}
}

// node starts a fake node at "host:8006" and stops it with the test.
func (s *site) node(t *testing.T, host string) *fake {
	t.Helper()
	f := &fake{routes: map[string][]route{}}
	s.serve(t, host, f)
	return f
}

func (s *site) serve(t *testing.T, host string, h http.Handler) {
	t.Helper()
	l, err := s.net.Listen(host + ":8006")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{s.cert}})) })
	t.Cleanup(func() {
		_ = srv.Close()
		wg.Wait()
	})
}

// client returns a client of the given hosts that trusts the site's certificate.
func (s *site) client(t *testing.T, hosts ...string) *Client {
	t.Helper()
	return s.clientWith(t, Options{RootCAs: s.pool(), Poll: time.Second}, hosts...)
}

func (s *site) clientWith(t *testing.T, o Options, hosts ...string) *Client {
	t.Helper()
	for _, h := range hosts {
		o.Endpoints = append(o.Endpoints, "https://"+h+":8006")
	}
	if o.Token == nil {
		o.Token = []byte(testToken)
	}
	if o.Dial == nil {
		o.Dial = s.net.Dialer().DialContext
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func (s *site) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(s.cert.Leaf)
	return pool
}

func (s *site) fingerprint() string { return formatFingerprint(sha256.Sum256(s.cert.Leaf.Raw)) }

func newCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pve1"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		DNSNames: []string{"pve1", "pve2"}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// silentDial connects every client to a server that accepts and never speaks.
func silentDial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	context.AfterFunc(ctx, func() { _ = there.Close() })
	return here, nil
}
