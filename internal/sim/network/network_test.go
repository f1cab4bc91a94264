package network_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/sim/network"
)

// listening is a network in memory with a listener on 127.42.7.1:80.
func listening(t *testing.T, latency time.Duration) (*network.Network, net.Listener) {
	t.Helper()
	n := network.Memory()
	n.Latency = latency
	l, err := n.Listen("127.42.7.1:80")
	if err != nil {
		t.Fatal(err)
	}
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
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
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
			if err != nil || string(got) != body {
				t.Errorf("got %d bytes, %v; want %d", len(got), err, len(body))
			}
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
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
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
		conn, err := n.Dialer().DialContext(t.Context(), "tcp", "127.42.7.1:80")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		_ = conn.Close()
		n.Wait()
		if took := time.Since(began); string(got) != "all of it" || err != nil || took != latency {
			t.Errorf("%q, %v after %s", got, err, took)
		}
	})
}
