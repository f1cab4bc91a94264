package network_test

import (
	"bufio"
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, l := listening(t, 0)
		dial := func(addr string, want error) {
			t.Helper()
			if _, err := n.Dialer().DialContext(t.Context(), "tcp", addr); !errors.Is(err, want) {
				t.Errorf("dial %s: %v, want %v", addr, err, want)
			}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, l := listening(t, latency)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "all of it")
			_ = conn.SetWriteDeadline(time.Now()) // as TLS does before it closes
			_ = conn.Close()
			if _, err := conn.Write([]byte("more")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("written behind the end: %v", err)
			}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
		synctest.Wait() // both deadlines have passed
		if _, err := conn.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %v", err)
		}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		if _, err := conn.Write([]byte("hello")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write later: %v", err)
		}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, d, l := directly(t, func(http.ResponseWriter, *http.Request) {})
		if resp, err := client.Get("http://127.42.7.1/"); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%v, %v", resp, err)
		}
		d.Cut()
		if _, err := client.Get("http://127.42.7.1/"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("cut off: %v", err)
		}
		d.Mend()
		_ = l.Close()
		if _, err := client.Get("http://127.42.7.1/"); !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("ended: %v", err)
		}
	})
}

// TestSlowHeaderPastTheWire: net/http's own limit and the client's hold.
func TestSlowHeaderPastTheWire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, _, l := directly(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		defer l.Close()
		if _, err := client.Get("http://127.42.7.1/"); err == nil || !strings.Contains(err.Error(), "timeout awaiting response headers") {
			t.Error(err)
		}
		client.Timeout = 10 * time.Second
		if _, err := client.Get("http://127.42.7.1/"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
