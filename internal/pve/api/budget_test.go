package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
)

// dead is an address that drops packets; deaf one that accepts connections and never
// answers.
func dialing(s *apitest.Site, dead, deaf map[string]bool) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		switch {
		case dead[addr]:
			<-ctx.Done()
			return nil, ctx.Err()
		case deaf[addr]:
			return apitest.SilentDial(ctx, network, addr)
		}
		return s.Net.Dialer().DialContext(ctx, network, addr)
	}
}

// TestReadsAreBounded bounds the time in which reads ask every endpoint that may
// know, or give up.
func TestReadsAreBounded(t *testing.T) {
	t.Parallel()
	const config = "GET /nodes/pve9/qemu/101/config"
	ok := data(`{"digest":"d"}`)
	downAfter30s := after(30*time.Second, raw("595 Connection timed out", ""))
	cases := map[string]struct {
		dead, deaf map[string]bool
		answers    map[string]route // of the hosts that are up
		within     time.Duration
		err        string
		asked      int // number of hosts asked
	}{
		"the first endpoint is without power": {
			dead: map[string]bool{"pve1:8006": true}, answers: map[string]route{"pve2": ok, "pve3": ok}, within: dialTimeout + time.Second, asked: 1,
		},
		"two are without power": {
			dead: map[string]bool{"pve1:8006": true, "pve2:8006": true}, answers: map[string]route{"pve3": ok}, within: 2*dialTimeout + time.Second, asked: 1,
		},
		"the first hangs before the handshake": {
			deaf: map[string]bool{"pve1:8006": true}, answers: map[string]route{"pve2": ok, "pve3": ok}, within: dialTimeout + time.Second, asked: 1,
		},
		"the first hangs": {
			answers: map[string]route{"pve1": after(time.Hour, ok), "pve2": ok, "pve3": ok}, within: readTimeout + time.Second, asked: 2,
		},
		"all hang": {
			answers: map[string]route{"pve1": after(time.Hour, ok), "pve2": after(time.Hour, ok), "pve3": after(time.Hour, ok)},
			within:  2*readTimeout + time.Second, asked: 2, err: "GET /nodes/pve9/qemu/101/config: pve2:8006: no complete answer within 40s",
		},
		"the host asked about is down": {
			answers: map[string]route{"pve1": downAfter30s, "pve2": downAfter30s, "pve3": downAfter30s},
			within:  61 * time.Second, asked: 2, err: "GET /nodes/pve9/qemu/101/config: 595 Connection timed out",
		},
		"all are without power": {
			dead:   map[string]bool{"pve1:8006": true, "pve2:8006": true, "pve3:8006": true},
			within: retryBudget + dialTimeout + time.Second,
			err:    "GET /nodes/pve9/qemu/101/config: reach Proxmox: pve1:8006: context deadline exceeded; pve2:8006: context deadline exceeded",
		},
		"no token any more": {
			answers: map[string]route{"pve1": after(3*time.Second, raw("401 invalid token value!", "")), "pve2": ok, "pve3": ok},
			within:  4 * time.Second, asked: 1, err: "GET /nodes/pve9/qemu/101/config: 401 invalid token value!",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := apitest.NewSite(t)
				var hosts []*fake
				for host, answer := range tc.answers {
					f := s.Node(t, host)
					f.On(config, answer)
					hosts = append(hosts, f)
				}
				c := connWith(t, s, Options{Fingerprint: s.Fingerprint(), Dial: dialing(s, tc.dead, tc.deaf)}, "pve1", "pve2", "pve3")
				start := time.Now()
				var raw any
				err := c.Get(t.Context(), "/nodes/pve9/qemu/101/config", &raw)
				if took := time.Since(start); took > tc.within {
					t.Errorf("took %s, more than %s", took, tc.within)
				}
				same(t, "error", cmp.Or(tc.err, "<nil>"), fmt.Sprint(err))
				asked := 0
				for _, f := range hosts {
					if len(f.Requests()) > 0 {
						asked++
					}
				}
				if asked != tc.asked {
					t.Errorf("%d hosts were asked, want %d", asked, tc.asked)
				}
			})
		})
	}
}

// TestAnEndpointIsNotBlamedForAnother: an endpoint that reports another host as down
// stays the preferred one.
func TestAnEndpointIsNotBlamedForAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.NewSite(t)
		pve1, pve2 := s.Node(t, "pve1"), s.Node(t, "pve2")
		for _, f := range []*fake{pve1, pve2} {
			f.On("GET /nodes/pve9/tasks", raw("595 No route to host", ""))
			f.On("GET /version", data(`{}`))
		}
		c := connTo(t, s, "pve1", "pve2")
		var out any
		err := c.Get(t.Context(), "/nodes/pve9/tasks", &out)
		if hints := fmt.Sprint(fault.Hints(err)); hints != "[the node that was asked does not reach pve9: see whether that one is up, and its pveproxy and pvedaemon]" {
			t.Errorf("error %v, hints %s", err, hints)
		}
		must(t, c.Get(t.Context(), "/version", &out))
		same(t, "last asked of pve1", "GET /version", pve1.Requests()[len(pve1.Requests())-1])
	})
}

// slowBody is a body that is read slowly.
type slowBody struct {
	left  int
	pause time.Duration
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(b.pause)
	n := min(len(p), b.left, 1<<16)
	b.left -= n
	return n, nil
}

// TestSlowBody sends a body for an hour, and another to a server that stops reading it.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		taken int64
		want  time.Duration
		err   bool
	}{
		"taken slowly": {taken: 64 << 20, want: 1000 * 4 * time.Second},
		"not taken":    {taken: 1 << 20, want: 5 * time.Minute, err: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := apitest.NewSite(t)
				pve1 := s.Node(t, "pve1")
				release := make(chan struct{})
				pve1.On("POST /x", func(w http.ResponseWriter, r *http.Request) {
					n, _ := io.CopyN(io.Discard, r.Body, tc.taken)
					if n < 64<<20 && tc.taken < 64<<20 {
						<-release
						return
					}
					data(`"x"`)(w, r)
				})
				c := connTo(t, s, "pve1")
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.base+"/x", &slowBody{left: 64 << 20, pause: 4 * time.Second})
				must(t, err)
				req.ContentLength = 64 << 20
				start := time.Now()
				resp, err := c.http.Do(req)
				if err == nil {
					must(t, resp.Body.Close())
				}
				close(release)
				if took := time.Since(start); (err != nil) != tc.err || tc.err == (took > tc.want) {
					t.Errorf("error %v after %s", err, took)
				}
				if tc.err && !errors.Is(err, cluster.ErrLostAnswer) {
					t.Errorf("error is %v", err)
				}
			})
		})
	}
}

// TestAnAnswerThatDoesNotEnd bounds the reading of an answer that has begun.
func TestAnAnswerThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.NewSite(t)
		s.Node(t, "pve1").On("PUT /x", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, `{"da`)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		start := time.Now()
		err := connTo(t, s, "pve1").Change(t.Context(), http.MethodPut, "/x", nil, nil)
		if took := time.Since(start); !errors.Is(err, cluster.ErrLostAnswer) || !errors.Is(err, errSlowAnswer) || took != headerTimeout {
			t.Errorf("error %v after %s", err, took)
		}
	})
}

// TestPasswordIsNeverShown has a server that echoes what it rejects.
func TestPasswordIsNeverShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.NewSite(t)
		s.Node(t, "pve1").On("PUT /x", raw("400 Parameter verification failed.", `{"message":"hunter2","errors":{"cipassword":"got 'hunter2'"}}`))
		err := connTo(t, s, "pve1").Change(t.Context(), http.MethodPut, "/x", map[string]string{"cipassword": "hunter2"}, nil)
		same(t, "error", "PUT /x: 400 [redacted]: cipassword: got '[redacted]'", fmt.Sprint(err))
	})
}

// TestHTTP2IsNotUsed offers HTTP/2, whose answers have no reason phrase.
func TestHTTP2IsNotUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.NewSite(t)
		l, err := s.Net.Listen("pve1:8006")
		must(t, err)
		srv := &http.Server{Handler: http.HandlerFunc(raw("500 no options specified", ""))}
		srv.Protocols = new(http.Protocols)
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetHTTP2(true)
		var wg sync.WaitGroup
		srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{s.Cert}}
		wg.Go(func() { _ = srv.ServeTLS(l, "", "") })
		c := connTo(t, s, "pve1")
		err = c.Change(t.Context(), http.MethodPut, "/x", nil, nil)
		same(t, "error", "PUT /x: 500 no options specified", fmt.Sprint(err))
		must(t, srv.Close())
		wg.Wait()
	})
}
