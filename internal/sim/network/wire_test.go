package network_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
)

// served is an in-memory server and a client of it.
type served struct {
	dialer *network.Dialer
	server *http.Server
	client *http.Client
	at     *url.URL
	tls    *tls.Config // the client's
	acted  int
	end    func() // ends both
}

// protocol is spoken by a server and its clients.
type protocol string

const (
	plain protocol = "HTTP/1.1"
	http1 protocol = "HTTP/1.1 over TLS"
	http2 protocol = "HTTP/2"
)

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.Do(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP("127.42.7.1")}, IsCA: true, BasicConstraintsValid: true}
	der := must.Get(x509.CreateCertificate(rand.Reader, c, c, key.Public(), key))(t)
	leaf := must.Get(x509.ParseCertificate(der))(t)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// serve starts a server, with a door if direct.
func serve(t *testing.T, p protocol, direct bool, handle func(*served, http.ResponseWriter, *http.Request)) *served {
	t.Helper()
	const addr = "127.42.7.1:443"
	n := network.Memory()
	l, err := n.Listen(addr)
	must.Do(t, err)
	s := &served{dialer: n.Dialer(), at: &url.URL{Scheme: "https", Host: addr, Path: "/"}}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.acted++
		_, _ = io.Copy(io.Discard, r.Body)
		handle(s, w, r)
	})
	cert := certificate(t)
	s.server = &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0), Protocols: new(http.Protocols), TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
	s.server.Protocols.SetHTTP1(p != http2)
	s.server.Protocols.SetHTTP2(p == http2)
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	s.tls = &tls.Config{RootCAs: roots}
	transport := &http.Transport{DialContext: s.dialer.DialContext, TLSClientConfig: s.tls, ForceAttemptHTTP2: p == http2}
	door := network.Door{Handler: h, Certificate: cert.Leaf, HTTP2: p == http2}
	begin := func() error { return s.server.ServeTLS(l, "", "") }
	if p == plain {
		s.at.Scheme, door.Certificate = "http", nil
		begin = func() error { return s.server.Serve(l) }
	}
	s.client = &http.Client{Transport: transport}
	if direct {
		n.Open(t.Context(), addr, func() (network.Door, bool) { return door, true })
		s.client.Transport = s.dialer.Direct(transport)
	}
	ended := make(chan error, 1)
	go func() { ended <- begin() }()
	s.end = func() {
		transport.CloseIdleConnections()
		_ = s.server.Close()
		must.Equal(t, "served", http.ErrServerClosed, <-ended, cmpopts.EquateErrors())
	}
	return s
}

// begin sends a part of the answer, and waits until it has arrived.
func (s *served) begin(w http.ResponseWriter) {
	_, _ = io.WriteString(w, "some")
	_ = http.NewResponseController(w).Flush()
	synctest.Wait()
}

// outcome is the client's result.
func (s *served) outcome(req *http.Request) string {
	resp, err := s.client.Do(req)
	if err != nil {
		return fmt.Sprintf("no answer: %s; acted %d", kindOf(errors.Unwrap(err)), s.acted)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return fmt.Sprintf("%s %s %d %q %s; acted %d", resp.Proto, resp.Status, resp.ContentLength, got, kindOf(err), s.acted)
}

// kindOf classifies an error as clients do. HTTP/2 has two errors for a connection that the client closed itself.
func kindOf(err error) string {
	if errors.Is(err, net.ErrClosed) {
		return "it is closed"
	}
	return fmt.Sprint(err)
}

// ends are how each side ends, and the network between them, at various moments.
var ends = map[string]func(*served, http.ResponseWriter, *http.Request){
	"an answer": func(s *served, w http.ResponseWriter, _ *http.Request) { s.begin(w) },
	"what it is sent": func(_ *served, w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto+r.UserAgent()+r.Host)
	},
	"a status":   func(_ *served, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
	"a long one": func(_ *served, w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, "%080000d", 7) },
	"a reason": func(_ *served, w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil { // HTTP/2
			http.Error(w, err.Error(), http.StatusNotImplemented)
			return
		}
		_, _ = buf.WriteString("HTTP/1.1 500 no such VM\r\nContent-Length: 2\r\n\r\nno")
		_ = buf.Flush()
		_ = conn.Close()
	},
	"broken off": func(*served, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	"broken off later": func(s *served, w http.ResponseWriter, _ *http.Request) {
		s.begin(w)
		panic(http.ErrAbortHandler)
	},
	"its goroutine ends": func(*served, http.ResponseWriter, *http.Request) { runtime.Goexit() },
	"too short": func(_ *served, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9")
		_, _ = io.WriteString(w, "some")
	},
	"too short later": func(s *served, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9")
		s.begin(w)
	},
	"the server ends": func(s *served, _ http.ResponseWriter, r *http.Request) {
		_ = s.server.Close()
		<-r.Context().Done()
	},
	"the server ends later": func(s *served, w http.ResponseWriter, r *http.Request) {
		s.begin(w)
		_ = s.server.Close()
		<-r.Context().Done()
	},
	"the client is cut off": func(s *served, _ http.ResponseWriter, r *http.Request) {
		s.dialer.Cut()
		<-r.Context().Done()
	},
	"the client is cut off later": func(s *served, w http.ResponseWriter, r *http.Request) {
		s.begin(w)
		s.dialer.Cut()
		<-r.Context().Done()
	},
}

// TestTheDoorMatchesTheWire plays each end over a connection and directly, and compares the results.
func TestTheDoorMatchesTheWire(t *testing.T) {
	t.Parallel()
	for name, handle := range ends {
		for _, p := range []protocol{plain, http1, http2} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				t.Run(name+"/"+string(p)+"/"+method, func(t *testing.T) {
					t.Parallel()
					outcome := func(direct bool) (said string) {
						synctest.Test(t, func(t *testing.T) {
							s := serve(t, p, direct, handle)
							defer s.end()
							req, err := http.NewRequest(method, s.at.String(), nil)
							must.Do(t, err)
							if method == http.MethodPost {
								req.Body, req.ContentLength = io.NopCloser(strings.NewReader("sent")), 4
							}
							said = s.outcome(req)
							if n := s.dialer.Dials(); (n > 0) == direct {
								t.Errorf("%d connections were made", n)
							}
						})
						return said
					}
					wire, door := outcome(false), outcome(true)
					if p == http2 && strings.HasPrefix(name, "the client is cut off") {
						wire = strings.Replace(wire, "unexpected EOF", "it is closed", 1)
					}
					must.Equal(t, "past the wire: over it", wire, door)
				})
			}
		}
	}
}

// TestUntrustedServer: for an untrusted server the error comes from the wire.
func TestUntrustedServer(t *testing.T) {
	t.Parallel()
	for _, p := range []protocol{http1, http2} {
		outcome := func(direct bool) (said string) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, p, direct, func(*served, http.ResponseWriter, *http.Request) {})
				defer s.end()
				s.tls.RootCAs = x509.NewCertPool()
				req, err := http.NewRequest(http.MethodGet, s.at.String(), nil)
				must.Do(t, err)
				said = s.outcome(req)
			})
			return said
		}
		wire, door := outcome(false), outcome(true)
		if door != wire || !strings.Contains(wire, "certificate signed by unknown authority; acted 0") {
			t.Errorf("%s: past the wire: %s\nover it: %s", p, door, wire)
		}
	}
}

// TestABodyOfTheWrongLength: a wrong length fails at both ends.
func TestABodyOfTheWrongLength(t *testing.T) {
	t.Parallel()
	for _, length := range []int64{2, 9} {
		for _, direct := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, plain, direct, func(_ *served, _ http.ResponseWriter, r *http.Request) {
					if r.Context().Err() == nil {
						t.Errorf("length %d, direct %t: all of it has come", length, direct)
					}
				})
				defer s.end()
				_, err := s.client.Do(&http.Request{Method: http.MethodPost, URL: s.at, Body: io.NopCloser(strings.NewReader("sent")), ContentLength: length})
				if want := fmt.Sprintf("http: ContentLength=%d with Body length 4", length); err == nil || errors.Unwrap(err).Error() != want {
					t.Errorf("length %d, direct %t: %v", length, direct, err)
				}
			})
		}
	}
}
