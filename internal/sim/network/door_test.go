package network_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/sim/network"
)

// directly is a client of an in-memory server whose handler it reaches without the wire.
func directly(t *testing.T, h http.HandlerFunc) (*http.Client, *network.Dialer, io.Closer) {
	t.Helper()
	n, l := listening(t, 0)
	n.Open(t.Context(), "127.42.7.1:80", func() (network.Door, bool) { return network.Door{Handler: h}, true })
	d := n.Dialer()
	return &http.Client{Transport: d.Direct(&http.Transport{DialContext: d.DialContext, ResponseHeaderTimeout: time.Minute})}, d, l
}

// TestStreamPastTheWire reads flushed data while the handler runs, and ends the stream at the
// client.
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
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.42.7.1/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
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
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the handler: %v", err)
		}
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
