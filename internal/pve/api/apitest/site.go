// Package apitest provides Proxmox nodes for tests. A Fake answers a request only with the Routes that a test set; a
// Site is a network of Fakes.
package apitest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
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
	// Secret is the secret part of Token.
	Secret = "01234567-89ab-cdef-0123-456789abcdef"
	// Token is a token that the fakes do not check.
	Token = "recast@pve!roll=" + Secret
)

type Route func(w http.ResponseWriter, r *http.Request)

// Fake is a Proxmox node that answers a request only as a test has set.
type Fake struct {
	mu     sync.Mutex
	routes map[string][]Route // "GET /path" -> answers in turn, the last one repeats
	seen   []string
}

// On sets the answers to a request, such as "GET /path".
func (f *Fake) On(request string, answers ...Route) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.routes[request] = answers
}

func (f *Fake) Answers(request string) []Route { return f.routes[request] }

func (f *Fake) Requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.seen...)
}

func Changes(requests []string) []string {
	return slices.DeleteFunc(requests, func(r string) bool { return strings.HasPrefix(r, "GET ") })
}

func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Method + " " + strings.TrimPrefix(r.URL.RequestURI(), "/api2/json")
	f.mu.Lock()
	f.seen = append(f.seen, key)
	answers := f.routes[key]
	if len(answers) > 1 {
		f.routes[key] = answers[1:]
	}
	f.mu.Unlock()
	if len(answers) == 0 {
		Raw("501 Method '"+key+"' not implemented", "")(w, r)
		return
	}
	answers[0](w, r)
}

func Data(json string) Route {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data":`+json+`}`)
	}
}

// Raw answers with exactly this status line, which net/http cannot send.
func Raw(status, body string) Route {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 "+status+"\r\nConnection: close\r\n\r\n"+body)
	}
}

// Lost breaks the connection instead of answering.
func Lost(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// After answers after d, unless the client disconnects before.
func After(d time.Duration, then Route) Route {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(d):
			then(w, r)
		}
	}
}

// Site is a network with Fakes of Proxmox nodes that share one certificate.
type Site struct {
	Net  *network.Network
	Cert tls.Certificate
}

// NewSite makes a network without nodes.
func NewSite(t *testing.T) *Site {
	t.Helper()
	return &Site{Net: network.Memory(), Cert: NewCertificate(t)}
}

// Node starts a Fake at "host:8006" and stops it with the test.
func (s *Site) Node(t *testing.T, host string) *Fake {
	t.Helper()
	f := &Fake{routes: map[string][]Route{}}
	s.Serve(t, host, f)
	return f
}

// Serve answers with h at "host:8006" until the test ends.
func (s *Site) Serve(t *testing.T, host string, h http.Handler) {
	t.Helper()
	l, err := s.Net.Listen(host + ":8006")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{s.Cert}})) })
	t.Cleanup(func() {
		_ = srv.Close()
		wg.Wait()
	})
}

func (s *Site) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(s.Cert.Leaf)
	return pool
}

func (s *Site) Fingerprint() string { return Fingerprint(s.Cert.Leaf) }

// Fingerprint returns the SHA-256 of a certificate: "AA:BB:…".
func Fingerprint(c *x509.Certificate) string {
	return strings.ReplaceAll(fmt.Sprintf("% X", sha256.Sum256(c.Raw)), " ", ":")
}

// NewCertificate makes a self-signed certificate for pve1, pve2 and the addresses.
func NewCertificate(t *testing.T, addrs ...net.IP) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pve1"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		DNSNames: []string{"pve1", "pve2"}, IPAddresses: addrs, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
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

// SilentDial connects every client to a server that accepts the connection and sends nothing.
func SilentDial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	context.AfterFunc(ctx, func() { _ = there.Close() })
	return here, nil
}
