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
)

// TestKeptConnections sends requests that net/http must not repeat sequentially over one
// connection: none may fail.
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
		if n := s.dialer.Dials(); n != 1 {
			t.Errorf("%d connections were made", n)
		}
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
