package network_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
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
		cut := n.Dialer()
		cut.Cut()
		must.FailIs(t, must.Err(cut.DialContext(t.Context(), "tcp", "127.42.7.1:80")), syscall.ECONNREFUSED)
		must.Do(t, l.Close())
		dial("127.42.7.1:80", syscall.EHOSTUNREACH)
	})
}

// TestCut: a cut breaks the requests that are under way, for the server too, and those that come; a mended client
// connects again.
func TestCut(t *testing.T) {
	must.Bubbles(t, map[string]bool{"before the answer": false, "in its body": true}, func(t *testing.T, begun bool) {
		n, l := listening(t, 0)
		gone := make(chan error, 1)
		server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/now" {
				return
			}
			if begun {
				must.Pass(t, http.NewResponseController(rw).Flush())
			}
			<-r.Context().Done()
			gone <- r.Context().Err()
		})}
		ended := make(chan error)
		go func() { ended <- server.Serve(l) }()
		d := n.Dialer()
		client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
		get := func(path string) error {
			resp, err := client.Get("http://127.42.7.1" + path)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				err = errors.Join(err, resp.Body.Close())
			}
			return err
		}
		go func() {
			time.Sleep(time.Second)
			d.Cut()
		}()
		must.Hold(t, get("/slow") != nil, "an answer came through a cut")
		must.FailIs(t, <-gone, context.Canceled)
		must.FailIs(t, get("/now"), syscall.ECONNREFUSED)
		d.Mend()
		must.Pass(t, get("/now"))
		must.Do(t, server.Close())
		must.FailIs(t, <-ended, http.ErrServerClosed)
		must.Hold(t, get("/now") != nil, "a closed server answers")
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
			took := time.Since(began)
			must.Hold(t, took >= latency && took <= 10*latency, "it took %s", took)
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
		n, l := listening(t, 0)
		acted := 0
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			acted++
			_, _ = fmt.Fprint(w, "answer ", acted)
		})}
		go func() { _ = server.Serve(l) }()
		dialer := n.Dialer()
		client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
		defer server.Close()
		defer client.CloseIdleConnections()
		for i := range 500 {
			res, err := client.Post("http://127.42.7.1/", "text/plain", strings.NewReader("request"))
			must.Be(t, err == nil, "request %d: %v", i+1, err)
			got, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			want := fmt.Sprint("answer ", i+1)
			must.Be(t, err == nil && string(got) == want, "got %q, %v; want %q", got, err, want)
		}
		must.Equal(t, "connections were made", 1, dialer.Dials())
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
		must.Be(t, err == nil && <-accepted == nil, "%v", err)
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
