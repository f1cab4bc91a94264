package network_test

import (
	"bufio"
	"context"
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
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
)

// listening is a network in memory with a listener on 127.42.7.1:80.
func listening(t *testing.T, latency time.Duration) (*network.Network, net.Listener) {
	t.Helper()
	n := network.Memory()
	n.Latency = latency
	l := must.Get(n.Listen("127.42.7.1:80"))(t)
	return n, l
}

// TestAddressWithoutAListener: a machine refuses connections to ports without a listener, and an
// unassigned address is unreachable.
func TestAddressWithoutAListener(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		n, l := listening(t, 0)
		dial := func(addr string, want error) {
			t.Helper()
			must.FailIs(t, must.Err(n.Dialer().DialContext(t.Context(), "tcp", addr)), want)
		}
		dial("127.42.7.1:443", syscall.ECONNREFUSED)
		dial("127.42.7.11:80", syscall.EHOSTUNREACH)
		must.Do(t, l.Close())
		dial("127.42.7.1:80", syscall.EHOSTUNREACH)
	})
}

const latency = 20 * time.Millisecond

// TestLatency: each answer is delayed by the latency, and no request waits for another.
func TestLatency(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		n, l := listening(t, latency)
		body := strings.Repeat("x", 1<<20) // more than may be delayed at once
		server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, body) })}
		ended := make(chan error)
		go func() { ended <- server.Serve(l) }()
		transport := &http.Transport{DialContext: n.Dialer().DialContext, MaxIdleConnsPerHost: 4}
		client := &http.Client{Transport: transport}
		ask := func() {
			began := time.Now()
			res, err := client.Get("http://127.42.7.1/")
			if err != nil {
				t.Error(err)
				return
			}
			got, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			must.Equal(t, "body", []any{nil, body}, []any{err, string(got)})
			if took := time.Since(began); took < latency || took > 10*latency {
				t.Errorf("it took %s", took)
			}
		}
		done := make(chan bool)
		for range 4 {
			go func() { ask(); done <- true }()
		}
		for range 4 {
			<-done
		}
		transport.CloseIdleConnections()
		_ = server.Close()
		must.Equal(t, "got", http.ErrServerClosed, <-ended, cmpopts.EquateErrors())
		n.Wait()
	})
}

// TestDelayedDataArrives closes a connection after a write.
func TestDelayedDataArrives(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		n, l := listening(t, latency)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "all of it")
			_ = conn.SetWriteDeadline(time.Now()) // as TLS does before it closes
			_ = conn.Close()
			must.FailIs(t, must.Err(conn.Write([]byte("more"))), net.ErrClosed)
			_ = l.Close()
		}()
		began := time.Now()
		conn := must.Get(n.Dialer().DialContext(t.Context(), "tcp", "127.42.7.1:80"))(t)
		got, err := io.ReadAll(conn)
		_ = conn.Close()
		n.Wait()
		must.Equal(t, "read", []any{"all of it", nil, latency}, []any{string(got), err, time.Since(began)})
	})
}

// TestKeptConnections sends requests that net/http must not repeat sequentially over one connection: none may fail.
func TestKeptConnections(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		s := serve(t, plain, false, func(s *served, w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "answer ", s.acted) })
		defer s.end()
		for i := range 500 {
			res, err := s.client.Post(s.at.String(), "text/plain", strings.NewReader("request"))
			if err != nil {
				t.Fatalf("request %d: %v", i+1, err)
			}
			got, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if want := fmt.Sprint("answer ", i+1); err != nil || string(got) != want {
				t.Fatalf("got %q, %v; want %q", got, err, want)
			}
		}
		must.Equal(t, "connections were made", 1, s.dialer.Dials())
	})
}

func TestDeadlines(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		n, l := listening(t, 0)
		accepted := make(chan error)
		go func() {
			_, err := l.Accept()
			accepted <- err
		}()
		conn, err := n.Dialer().DialContext(t.Context(), "tcp", "127.42.7.1:80")
		if err != nil || <-accepted != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		must.FailIs(t, must.Err(conn.Read(make([]byte, 1))), os.ErrDeadlineExceeded)
		synctest.Wait() // both deadlines have passed
		must.FailIs(t, must.Err(conn.Write([]byte("x"))), os.ErrDeadlineExceeded)
		_ = conn.SetDeadline(time.Time{})
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Errorf("write without deadline: %v", err)
		}
		_ = conn.Close()
		_ = l.Close()
	})
}

// Data sent before the other end closed is read, whatever was written meanwhile.
func TestClosedByTheOther(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		n, l := listening(t, 0)
		go func() {
			if conn, err := l.Accept(); err == nil {
				_, _ = conn.Write([]byte("no"))
				_ = conn.Close()
			}
		}()
		conn := must.Get(n.Dialer().DialContext(t.Context(), "tcp", "127.42.7.1:80"))(t)
		synctest.Wait()
		for range 2 {
			if n, err := conn.Write([]byte("hello")); n != 5 || err != nil {
				t.Errorf("write at once: %d, %v", n, err)
			}
		}
		const more = 1 << 20 // larger than the buffer
		if n, err := conn.Write(make([]byte, more)); n == 0 || n == more || !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write of much: %d, %v", n, err)
		}
		must.FailIs(t, must.Err(conn.Write([]byte("hello"))), syscall.EPIPE)
		if b, err := io.ReadAll(conn); string(b) != "no" || err != nil {
			t.Errorf("read %q, %v", b, err)
		}
		_ = conn.Close()
		_ = l.Close()
	})
}

// directly is a client of an in-memory server whose handler it reaches without the wire.
func directly(t *testing.T, h http.HandlerFunc) (*http.Client, *network.Dialer, io.Closer) {
	t.Helper()
	n, l := listening(t, 0)
	n.Open(t.Context(), "127.42.7.1:80", func() (network.Door, bool) { return network.Door{Handler: h}, true })
	d := n.Dialer()
	return &http.Client{Transport: d.Direct(&http.Transport{DialContext: d.DialContext, ResponseHeaderTimeout: time.Minute})}, d, l
}

// TestStreamPastTheWire reads flushed data while the handler runs, and ends the stream at the client.
func TestStreamPastTheWire(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		left := make(chan error, 1)
		client, _, l := directly(t, func(w http.ResponseWriter, r *http.Request) {
			for i := 0; r.Context().Err() == nil; i++ {
				_, _ = fmt.Fprintln(w, i)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(time.Second):
				case <-r.Context().Done():
				}
			}
			left <- r.Context().Err()
		})
		defer l.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "http://127.42.7.1/", nil))(t)
		resp := must.Get(client.Do(req))(t)
		lines := bufio.NewScanner(resp.Body)
		for i := range 3 {
			if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
				t.Errorf("line %q, %v, want %d", lines.Text(), lines.Err(), i)
			}
		}
		cancel()
		if lines.Scan() || !errors.Is(lines.Err(), context.Canceled) {
			t.Errorf("after the client's end: %q, %v", lines.Text(), lines.Err())
		}
		_ = resp.Body.Close()
		must.Equal(t, "the handler", context.Canceled, <-left, cmpopts.EquateErrors())
	})
}

// TestClosedServerPastTheWire: a closed server refuses requests, and a client that is cut off can send none.
func TestClosedServerPastTheWire(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		client, d, l := directly(t, func(http.ResponseWriter, *http.Request) {})
		if resp, err := client.Get("http://127.42.7.1/"); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%v, %v", resp, err)
		}
		d.Cut()
		must.FailIs(t, must.Err(client.Get("http://127.42.7.1/")), syscall.ECONNREFUSED)
		d.Mend()
		_ = l.Close()
		must.FailIs(t, must.Err(client.Get("http://127.42.7.1/")), syscall.EHOSTUNREACH)
	})
}

// TestSlowHeaderPastTheWire: net/http's own limit and the client's hold.
func TestSlowHeaderPastTheWire(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		client, _, l := directly(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		defer l.Close()
		if _, err := client.Get("http://127.42.7.1/"); err == nil || !strings.Contains(err.Error(), "timeout awaiting response headers") {
			t.Error(err)
		}
		client.Timeout = 10 * time.Second
		must.FailIs(t, must.Err(client.Get("http://127.42.7.1/")), context.DeadlineExceeded)
	})
}

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
