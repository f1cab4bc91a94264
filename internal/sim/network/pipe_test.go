package network_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/sim/network"
)

// TestKeptConnections sends requests that net/http must not repeat sequentially over one
// connection: none may fail.
func TestKeptConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := network.Memory()
		l, err := n.Listen("127.42.7.1:80")
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(rw, r.Body)
		})}
		ended := make(chan error)
		go func() { ended <- server.Serve(l) }()
		transport := &http.Transport{DialContext: n.Dialer().DialContext}
		client := &http.Client{Transport: transport}
		for i := range 500 {
			want := fmt.Sprint("request ", i)
			res, err := client.Post("http://127.42.7.1/", "text/plain", strings.NewReader(want))
			if err != nil {
				t.Fatalf("%s: %v", want, err)
			}
			got, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil || string(got) != want {
				t.Fatalf("got %q, %v; want %q", got, err, want)
			}
		}
		transport.CloseIdleConnections()
		_ = server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := network.Memory()
		l, err := n.Listen("127.42.7.1:80")
		if err != nil {
			t.Fatal(err)
		}
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
		n := network.Memory()
		l, err := n.Listen("127.42.7.1:80")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if conn, err := l.Accept(); err == nil {
				_, _ = conn.Write([]byte("no"))
				_ = conn.Close()
			}
		}()
		conn, err := n.Dialer().DialContext(t.Context(), "tcp", "127.42.7.1:80")
		if err != nil {
			t.Fatal(err)
		}
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
