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
	n := network.Memory()
	l, err := n.Listen("127.42.7.1:80")
	if err != nil {
		t.Fatal(err)
	}
	n.Open(t.Context(), "127.42.7.1:80", func() (network.Door, bool) { return network.Door{Handler: h}, true })
	d := n.Dialer()
	return &http.Client{Transport: d.Direct(&http.Transport{DialContext: d.DialContext, ResponseHeaderTimeout: time.Minute})}, d, l
}

// TestAnswersPastTheWire reads every kind of answer as it would come over a connection.
func TestAnswersPastTheWire(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handle http.HandlerFunc
		want   string
	}{
		"what was sent": {func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }, "200 OK 4 [sent] <nil>"},
		"a status":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }, "418 I'm a teapot 0 [] <nil>"},
		"a long one":    {func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, "%080000d", 7) }, "200 OK -1 [80000 bytes] <nil>"},
		"a part": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = io.WriteString(w, "some")
		}, "200 OK 9 [some] unexpected EOF"},
		"broken off": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "no answer: EOF"},
		"broken off later": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "some")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "200 OK -1 [some] unexpected EOF"},
		"a reason": {func(w http.ResponseWriter, _ *http.Request) {
			conn, buf, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = buf.WriteString("HTTP/1.1 500 no such VM\r\nContent-Length: 2\r\n\r\nno")
			_ = buf.Flush()
			_ = conn.Close()
		}, "500 no such VM 2 [no] <nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, _, l := directly(t, c.handle)
				defer l.Close()
				if got := answerTo(client); got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
			})
		})
	}
}

func answerTo(client *http.Client) string {
	resp, err := client.Post("http://127.42.7.1/", "text/plain", strings.NewReader("sent"))
	if err != nil {
		return "no answer: " + errors.Unwrap(err).Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if len(body) > 100 {
		return fmt.Sprintf("%s %d [%d bytes] %v", resp.Status, resp.ContentLength, len(body), err)
	}
	return fmt.Sprintf("%s %d [%s] %v", resp.Status, resp.ContentLength, body, err)
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

// TestTheWayPastTheWireBreaks ends each side, and the network between them, during the handler.
func TestTheWayPastTheWireBreaks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		breaks func(*network.Dialer, io.Closer)
		late   time.Duration
		want   error
	}{
		"the client is cut off as the server has acted": {breaks: func(d *network.Dialer, _ io.Closer) { d.Cut() }},
		"the server ends":                     {breaks: func(_ *network.Dialer, l io.Closer) { _ = l.Close() }},
		"the client's patience is at its end": {late: time.Hour, want: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				acted := 0
				var d *network.Dialer
				var l io.Closer
				client, d, l := directly(t, func(w http.ResponseWriter, r *http.Request) {
					acted++
					if c.breaks != nil {
						c.breaks(d, l)
					}
					select {
					case <-time.After(c.late):
					case <-r.Context().Done():
					}
					_, _ = io.WriteString(w, "done")
				})
				defer l.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.42.7.1/", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := client.Do(req)
				if err == nil || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("answer %v, error %v, want %v", resp, err, c.want)
				}
				synctest.Wait()
				if acted != 1 {
					t.Errorf("the server has acted %d times", acted)
				}
			})
		})
	}
}

// TestClosedServerPastTheWire: a closed server refuses requests, and a client that is cut off can send none.
func TestClosedServerPastTheWire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, d, l := directly(t, func(http.ResponseWriter, *http.Request) {})
		if got := answerTo(client); got != "200 OK 0 [] <nil>" {
			t.Error(got)
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

// TestSlowHeaderPastTheWire: net/http's own limit holds.
func TestSlowHeaderPastTheWire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, _, l := directly(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		defer l.Close()
		if _, err := client.Get("http://127.42.7.1/"); err == nil || !strings.Contains(err.Error(), "timeout awaiting response headers") {
			t.Error(err)
		}
	})
}
