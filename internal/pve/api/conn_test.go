package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
	"github.com/recast-sh/recast/internal/sim/must"
)

const testUPID = "UPID:pve1:0000ABCD:00012345:386D4380:qmdestroy:101:recast@pve!roll:"

type (
	route = apitest.Route
	fake  = apitest.Fake
)

var (
	data, raw, after = apitest.Data, apitest.Raw, apitest.After

	lost route = apitest.Lost
)

// connTo returns a connection to the given hosts that trusts the site's certificate.
func connTo(t *testing.T, s *apitest.Site, hosts ...string) *Conn {
	t.Helper()
	return connWith(t, s, Options{RootCAs: s.Pool()}, hosts...)
}

func connWith(t *testing.T, s *apitest.Site, o Options, hosts ...string) *Conn {
	t.Helper()
	for _, h := range hosts {
		o.Endpoints = append(o.Endpoints, "https://"+h+":8006")
	}
	o.Token = []byte(apitest.Token)
	if o.Dial == nil {
		o.Dial = s.Net.Dialer().DialContext
	}
	c := must.Get(Connect(o))(t)
	t.Cleanup(c.Close)
	return c
}

// inSite runs a test in a bubble with a site of its own, beside the others.
func inSite(t *testing.T, test func(t *testing.T, s *apitest.Site)) {
	t.Helper()
	must.Bubble(t, func(t *testing.T) { test(t, apitest.NewSite(t)) })
}

// inEachSite runs each row of a table in a site of its own, all at the same time.
func inEachSite[T any](t *testing.T, rows map[string]T, test func(t *testing.T, s *apitest.Site, row T)) {
	t.Helper()
	must.Bubbles(t, rows, func(t *testing.T, row T) { test(t, apitest.NewSite(t), row) })
}

func TestReadIsRepeated(t *testing.T) {
	const request = "GET /cluster/nextid"
	again := []string{request, request}
	type row struct {
		answers []route
		want    []string // requests that arrive
		err     string
	}
	inEachSite(t, map[string]row{
		"proxy could not connect":     {[]route{raw("595 Connection refused", ""), data(`"100"`)}, again, ""},
		"bad gateway":                 {[]route{raw("502 Bad Gateway", "<html>"), data(`"100"`)}, again, ""},
		"connection breaks":           {[]route{lost, data(`"100"`)}, again, ""},
		"answer breaks off":           {[]route{raw("200 OK\r\nContent-Length: 99", `{"da`), data(`"100"`)}, again, ""},
		"server error is an answer":   {[]route{raw("500 nope", "")}, again[:1], "GET /cluster/nextid: 500 nope"},
		"redirect is not followed":    {[]route{raw("302 Found\r\nLocation: https://elsewhere/", "")}, again[:1], "GET /cluster/nextid: 302 Found"},
		"something else than Proxmox": {[]route{raw("200 OK", "<html>")}, again[:1], "GET /cluster/nextid: 200 the answer is not that of a Proxmox API"},
		"empty success":               {[]route{raw("200 OK", "")}, again[:1], "GET /cluster/nextid: 200 the answer is not that of a Proxmox API"},
		"forgot who asks":             {[]route{raw("500 user name not set", ""), data(`"100"`)}, again, ""},
		"given up": {
			[]route{raw("599 Too many redirections", "")}, []string{request, request, request, request}, "GET /cluster/nextid: 599 Too many redirections",
		},
	}, func(t *testing.T, s *apitest.Site, tc row) {
		pve1 := s.Node(t, "pve1")
		pve1.On(request, tc.answers...)
		var got string
		err := connTo(t, s, "pve1").Get(t.Context(), "/cluster/nextid", &got)
		must.Equal(t, "error", cmp.Or(tc.err, "<nil>"), fmt.Sprint(err))
		must.Hold(t, err != nil || got == "100", "got %q", got)
		must.Equal(t, "requests", tc.want, pve1.Requests())
	})
}

// TestChangeWithAForgottenUser: Proxmox does nothing before it knows the user.
func TestChangeWithAForgottenUser(t *testing.T) {
	t.Parallel()
	forgot := raw("500 user name not set", `{"data":null,"message":"user name not set\n"}`)
	for name, tc := range map[string]struct {
		answers []route
		times   int
		err     string
	}{
		"once":     {[]route{forgot, data("null")}, 2, ""},
		"for ever": {[]route{forgot}, 4, "500 user name not set"},
		"a task's": {[]route{raw("500 qmcreate: user name not set", "")}, 1, "500 qmcreate: user name not set"},
	} {
		for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodDelete} {
			t.Run(name+" "+method, func(t *testing.T) {
				inSite(t, func(t *testing.T, s *apitest.Site) {
					pve1 := s.Node(t, "pve1")
					pve1.On(method+" /nodes/pve1/qemu/101/config", tc.answers...)
					err := connTo(t, s, "pve1").Change(t.Context(), method, "/nodes/pve1/qemu/101/config", nil, nil)
					must.Fail(t, err, tc.err)
					must.Hold(t, !errors.Is(err, cluster.ErrLostAnswer), "%v: nothing was done", err)
					must.Equal(t, "sent", tc.times, len(pve1.Requests()))
				})
			})
		}
	}
}

func TestChangeGoesToAnotherEndpointIfNothingWasSent(t *testing.T) {
	inSite(t, func(t *testing.T, s *apitest.Site) {
		pve2 := s.Node(t, "pve2")
		pve2.On("PUT /nodes/pve1/qemu/101/config", data("null"))
		c := connTo(t, s, "pve1", "pve2") // nothing listens at pve1
		for range 2 {
			must.Do(t, c.Change(t.Context(), http.MethodPut, "/nodes/pve1/qemu/101/config", map[string]string{"cores": "2"}, nil))
		}
		must.Equal(t, "requests", slices.Repeat([]string{"PUT /nodes/pve1/qemu/101/config"}, 2), pve2.Requests())
		must.Equal(t, "first endpoint", int64(1), c.relay.current.Load())
	})
}

func TestNewRefuses(t *testing.T) {
	good := Options{Endpoints: []string{"https://pve1:8006"}, Token: []byte(apitest.Token)}
	type row struct {
		change func(*Options)
		want   string
	}
	must.Each(t, map[string]row{
		"no token":         {func(o *Options) { o.Token = nil }, "PROXMOX_VE_API_TOKEN is not set"},
		"password":         {func(o *Options) { o.Token = []byte("hunter2") }, "PROXMOX_VE_API_TOKEN is not a Proxmox API token"},
		"no endpoint":      {func(o *Options) { o.Endpoints = nil }, "no Proxmox endpoint is given"},
		"plain HTTP":       {func(o *Options) { o.Endpoints = []string{"http://pve1:8006"} }, `Proxmox endpoint "http://pve1:8006" is not an HTTPS address of a node`},
		"path":             {func(o *Options) { o.Endpoints = []string{"https://pve1/api2"} }, `Proxmox endpoint "https://pve1/api2" is not an HTTPS address of a node`},
		"user":             {func(o *Options) { o.Endpoints = []string{"https://root:word@pve1:8006"} }, "a Proxmox endpoint holds a user, a password or a query"},
		"user, no URL":     {func(o *Options) { o.Endpoints = []string{"https://root:%zz@pve1"} }, "a Proxmox endpoint holds a user, a password or a query"},
		"query":            {func(o *Options) { o.Endpoints = []string{"https://pve1?ticket=word"} }, "a Proxmox endpoint holds a user, a password or a query"},
		"SHA-1":            {func(o *Options) { o.Fingerprint = "AA:BB" }, `"AA:BB" is not a SHA-256 fingerprint`},
		"blank pin":        {func(o *Options) { o.Fingerprint = " " }, "the fingerprint is blank"},
		"missing CA":       {func(o *Options) { o.CAFile = "nowhere.pem" }, "read the CA of Proxmox: open nowhere.pem: no such file or directory"},
		"CA without a PEM": {func(o *Options) { o.CAFile = "conn.go" }, "conn.go holds no PEM certificate"},
	}, func(t *testing.T, tc row) {
		o := good
		tc.change(&o)
		_, err := Connect(o)
		must.FailAs(t, err, fault.Config)
		must.Equal(t, "error", tc.want, fmt.Sprint(err))
	})
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	got := must.Get(parseEndpoints([]string{"https://pve1/", "https://[::1]:443", "https://pve2.example"}))(t)
	hosts := cluster.Each(got, func(u *url.URL) string { return u.Host })
	must.Equal(t, "hosts", []string{"pve1:8006", "[::1]:443", "pve2.example:8006"}, hosts)
}

// dead is an address that drops packets; deaf one that accepts connections and never answers.
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

// TestReadsAreBounded bounds the time in which reads ask every endpoint that may know, or give up.
func TestReadsAreBounded(t *testing.T) {
	const config = "GET /nodes/pve9/qemu/101/config"
	ok := data(`{"digest":"d"}`)
	downAfter30s := after(30*time.Second, raw("595 Connection timed out", ""))
	type row struct {
		dead, deaf map[string]bool
		answers    map[string]route // of the hosts that are up
		within     time.Duration
		err        string
		asked      int // number of hosts asked
	}
	inEachSite(t, map[string]row{
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
	}, func(t *testing.T, s *apitest.Site, tc row) {
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
		must.Take(t, start, 0, tc.within)
		must.Equal(t, "error", cmp.Or(tc.err, "<nil>"), fmt.Sprint(err))
		must.Equal(t, "hosts asked", tc.asked, len(cluster.Where(hosts, func(f *fake) bool { return len(f.Requests()) > 0 })))
	})
}

// TestAnEndpointIsNotBlamedForAnother: an endpoint that reports another host as down stays the preferred one.
func TestAnEndpointIsNotBlamedForAnother(t *testing.T) {
	inSite(t, func(t *testing.T, s *apitest.Site) {
		pve1, pve2 := s.Node(t, "pve1"), s.Node(t, "pve2")
		for _, f := range []*fake{pve1, pve2} {
			f.On("GET /nodes/pve9/tasks", raw("595 No route to host", ""))
			f.On("GET /version", data(`{}`))
		}
		c := connTo(t, s, "pve1", "pve2")
		var out any
		err := c.Get(t.Context(), "/nodes/pve9/tasks", &out)
		must.Equal(t, "hints", []string{"the node that was asked does not reach pve9: see whether that one is up, and its pveproxy and pvedaemon"}, fault.Hints(err))
		must.Do(t, c.Get(t.Context(), "/version", &out))
		must.Equal(t, "last asked of pve1", "GET /version", pve1.Requests()[len(pve1.Requests())-1])
	})
}

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
	type row struct {
		taken int64
		want  time.Duration
		err   bool
	}
	inEachSite(t, map[string]row{
		"taken slowly": {taken: 64 << 20, want: 1000 * 4 * time.Second},
		"not taken":    {taken: 1 << 20, want: 5 * time.Minute, err: true},
	}, func(t *testing.T, s *apitest.Site, tc row) {
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
		must.Do(t, err)
		req.ContentLength = 64 << 20
		start := time.Now()
		resp, err := c.http.Do(req)
		if err == nil {
			must.Do(t, resp.Body.Close())
		}
		close(release)
		took := time.Since(start)
		must.Hold(t, (err != nil) == tc.err && tc.err != (took > tc.want), "error %v after %s", err, took)
		must.Hold(t, !tc.err || errors.Is(err, cluster.ErrLostAnswer), "error is %v", err)
	})
}

// TestAnAnswerThatDoesNotEnd bounds the reading of an answer that has begun.
func TestAnAnswerThatDoesNotEnd(t *testing.T) {
	inSite(t, func(t *testing.T, s *apitest.Site) {
		s.Node(t, "pve1").On("PUT /x", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, `{"da`)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		start := time.Now()
		err := connTo(t, s, "pve1").Change(t.Context(), http.MethodPut, "/x", nil, nil)
		must.FailIs(t, err, cluster.ErrLostAnswer)
		must.FailIs(t, err, errSlowAnswer)
		must.Take(t, start, headerTimeout, headerTimeout)
	})
}

// TestPasswordIsNeverShown has a server that echoes what it rejects.
func TestPasswordIsNeverShown(t *testing.T) {
	inSite(t, func(t *testing.T, s *apitest.Site) {
		s.Node(t, "pve1").On("PUT /x", raw("400 Parameter verification failed.", `{"message":"hunter2","errors":{"cipassword":"got 'hunter2'"}}`))
		err := connTo(t, s, "pve1").Change(t.Context(), http.MethodPut, "/x", map[string]string{"cipassword": "hunter2"}, nil)
		must.Equal(t, "error", "PUT /x: 400 [redacted]: cipassword: got '[redacted]'", fmt.Sprint(err))
	})
}

// TestHTTP2IsNotUsed offers HTTP/2, whose answers have no reason phrase.
func TestHTTP2IsNotUsed(t *testing.T) {
	inSite(t, func(t *testing.T, s *apitest.Site) {
		l, err := s.Net.Listen("pve1:8006")
		must.Do(t, err)
		srv := &http.Server{Handler: http.HandlerFunc(raw("500 no options specified", ""))}
		srv.Protocols = new(http.Protocols)
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetHTTP2(true)
		var wg sync.WaitGroup
		srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{s.Cert}}
		wg.Go(func() { _ = srv.ServeTLS(l, "", "") })
		err = connTo(t, s, "pve1").Change(t.Context(), http.MethodPut, "/x", nil, nil)
		must.Equal(t, "error", "PUT /x: 500 no options specified", fmt.Sprint(err))
		must.Do(t, srv.Close())
		wg.Wait()
	})
}

func TestTrust(t *testing.T) {
	other := strings.Repeat("00:", 31) + "00"
	type row struct {
		options func(*testing.T, *apitest.Site) Options
		host    string
		err     string // part of it
		hint    string
	}
	inEachSite(t, map[string]row{
		"authority": {options: func(_ *testing.T, s *apitest.Site) Options { return Options{RootCAs: s.Pool()} }},
		"authority from a file": {options: func(t *testing.T, s *apitest.Site) Options {
			path := filepath.Join(t.TempDir(), "ca.pem")
			must.Do(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Cert.Leaf.Raw}), 0o600))
			return Options{CAFile: path}
		}},
		"pin": {options: func(_ *testing.T, s *apitest.Site) Options { return Options{Fingerprint: s.Fingerprint()} }},
		"one of two pins, in lower case": {options: func(_ *testing.T, s *apitest.Site) Options {
			return Options{Fingerprint: other + ", " + strings.ToLower(strings.ReplaceAll(s.Fingerprint(), ":", ""))}
		}},
		"a pin does not look at the name": {options: func(_ *testing.T, s *apitest.Site) Options { return Options{Fingerprint: s.Fingerprint()} }, host: "10.0.0.1"},
		"wrong pin":                       {options: func(*testing.T, *apitest.Site) Options { return Options{Fingerprint: other} }, err: "not the pinned " + other, hint: "openssl s_client -connect pve1:8006"},
		"unknown authority":               {options: func(*testing.T, *apitest.Site) Options { return Options{} }, err: "certificate", hint: "/etc/pve/pve-root-ca.pem"},
		"wrong name":                      {options: func(_ *testing.T, s *apitest.Site) Options { return Options{RootCAs: s.Pool()} }, host: "pve9", err: "pve9", hint: "name the endpoint as the certificate does: pve1"},
	}, func(t *testing.T, s *apitest.Site, tc row) {
		host := cmp.Or(tc.host, "pve1")
		first, second := s.Node(t, host), s.Node(t, "pve2")
		for _, n := range []*fake{first, second} {
			n.On("GET /cluster/status", data(`[{"type":"cluster","quorate":1}]`))
		}
		err := connWith(t, s, tc.options(t, s), host, "pve2").Get(t.Context(), "/cluster/status", new(any))
		must.Fail(t, err, tc.err)
		if tc.err == "" {
			return
		}
		must.Contain(t, "hints", fmt.Sprint(fault.Hints(err)), tc.hint)
		must.Hold(t, len(first.Requests())+len(second.Requests()) <= 0, "a request went to a server that is not trusted")
	})
}

// TestCertificateThatRanOut: a CA does not help, and the hint says so.
func TestCertificateThatRanOut(t *testing.T) {
	inSite(t, func(t *testing.T, s *apitest.Site) {
		s.Node(t, "pve1")
		time.Sleep(time.Until(s.Cert.Leaf.NotAfter) + time.Second)
		err := connTo(t, s, "pve1").Get(t.Context(), "/cluster/status", new(any))
		why, wrongName := Untrusted(err)
		hints := fmt.Sprint(fault.Hints(err))
		must.Contain(t, "why, hints", why+hints, "expired", "this machine's clock")
		must.Hold(t, !wrongName && !strings.Contains(hints, "caFile"), "%v: %t, %s", err, wrongName, hints)
	})
}

func TestUntrusted(t *testing.T) {
	inSite(t, func(t *testing.T, s *apitest.Site) {
		s.Node(t, "pve1")
		s.Node(t, "pve9")
		for host, want := range map[string]struct {
			o         Options
			why       string
			wrongName bool
		}{
			"pve1": {Options{}, "its issuer is not trusted by this machine", false},
			"pve9": {Options{RootCAs: s.Pool()}, "pve9", true},
		} {
			err := connWith(t, s, want.o, host).Get(t.Context(), "/cluster/status", new(any))
			why, wrongName := Untrusted(err)
			must.Hold(t, strings.Contains(why, want.why) && wrongName == want.wrongName, "%s: %q, %t: %v", host, why, wrongName, err)
		}
		why, _ := Untrusted(errors.New("refused"))
		must.Hold(t, why == "", "another error: %q", why)
	})
}

func TestWrongFingerprintShowsBoth(t *testing.T) {
	inSite(t, func(t *testing.T, s *apitest.Site) {
		s.Node(t, "pve1")
		err := connWith(t, s, Options{Fingerprint: strings.Repeat("ab", 32)}, "pve1").Get(t.Context(), "/cluster/status", new(any))
		e, ok := errors.AsType[*FingerprintError](err)
		must.Hold(t, ok && e.Got == s.Fingerprint() && e.Addr == "pve1:8006" && len(e.Want) == 1 && e.Want[0] == strings.Repeat("AB:", 31)+"AB",
			"error is %+v", err)
	})
}

func TestParseError(t *testing.T) {
	type row struct {
		status     int
		line, body string
		want       Error
		text       string
	}
	must.Each(t, map[string]row{
		"message in both": {
			500, "500 storage 'x' does not exist", `{"data":null,"message":"storage 'x' does not exist\n"}`,
			Error{Status: 500, Reason: "storage 'x' does not exist", Message: "storage 'x' does not exist"},
			"POST /p: 500 storage 'x' does not exist",
		},
		"status line only": {401, "401 No ticket", "", Error{Status: 401, Reason: "No ticket"}, "POST /p: 401 No ticket"},
		"no reason, as behind an HTTP/2 proxy": {
			500, "500", `{"message":"VM 110 is running - destroy failed\n","data":null}`,
			Error{Status: 500, Message: "VM 110 is running - destroy failed"},
			"POST /p: 500 VM 110 is running - destroy failed",
		},
		"neither": {500, "500 ", "", Error{Status: 500}, "POST /p: 500"},
		"parameters": {
			400, "400 Parameter verification failed.", `{"errors":{"scsi0":"bad\n","name":"worse"},"message":"Parameter verification failed.\n","data":null}`,
			Error{Status: 400, Reason: "Parameter verification failed.", Message: "Parameter verification failed.", Params: map[string]string{"scsi0": "bad", "name": "worse"}},
			"POST /p: 400 Parameter verification failed.: name: worse; scsi0: bad",
		},
		"plain text of the HTTP server": {
			501, "501 chunked transfer encoding not supported", "chunked transfer encoding not supported",
			Error{Status: 501, Reason: "chunked transfer encoding not supported"},
			"POST /p: 501 chunked transfer encoding not supported",
		},
		"plain text alone": {
			500, "500 ", "upload failed at AnyEvent.pm line 1370.\nmore\n",
			Error{Status: 500, Message: "upload failed at AnyEvent.pm line 1370."},
			"POST /p: 500 upload failed at AnyEvent.pm line 1370.",
		},
		"a proxy's page alone": {502, "502", "<html>", Error{Status: 502}, "POST /p: 502"},
		"a proxy's page":       {502, "502 Bad Gateway", "<html>", Error{Status: 502, Reason: "Bad Gateway"}, "POST /p: 502 Bad Gateway"},
	}, func(t *testing.T, tc row) {
		got := parseError("POST", "/p", tc.status, tc.line, []byte(tc.body))
		tc.want.Method, tc.want.Path = "POST", "/p"
		must.Equal(t, "parsed", &tc.want, got)
		must.Equal(t, "text", tc.text, got.Error())
	})
}

func TestSentinels(t *testing.T) {
	all := []error{cluster.ErrChanged, cluster.ErrLocked, cluster.ErrExists, cluster.ErrLostAnswer, cluster.ErrStorageBusy, ErrNoSpace, images.ErrNoStorage}
	type row struct {
		err  error
		want []error
	}
	must.Each(t, map[string]row{
		"config write":         {&Error{Method: "PUT", Status: 500, Reason: "checksum mismatch (file change by other user?)"}, []error{cluster.ErrChanged}},
		"move_disk":            {&Error{Method: "POST", Status: 500, Message: "VM 200: detected modified configuration - file changed by other user? Try again."}, []error{cluster.ErrChanged}},
		"task":                 {&TaskError{Exit: "VM 9: detected modified configuration - file changed by other user? Try again."}, []error{cluster.ErrChanged}},
		"locked":               {&Error{Method: "PUT", Status: 500, Message: "VM is locked (backup)"}, []error{cluster.ErrLocked}},
		"locked, in a task":    {&TaskError{Exit: "VM is locked (snapshot-delete)"}, []error{cluster.ErrLocked}},
		"upload's checksum":    {&TaskError{Exit: "checksum mismatch: got 'a' != expect 'b'"}, nil},
		"taken":                {&Error{Method: "POST", Status: 500, Reason: "unable to create VM 100 - VM 100 already exists on node 'pve1'"}, []error{cluster.ErrExists}},
		"taken by container":   {&TaskError{Exit: "unable to create VM 100 - CT 100 already exists on node 'pve1'"}, []error{cluster.ErrExists}},
		"gateway on a change":  {&Error{Method: "POST", Status: 595, Reason: "Connection refused"}, []error{cluster.ErrLostAnswer}},
		"gateway on a read":    {&Error{Method: "GET", Status: 595, Reason: "Connection refused"}, nil},
		"killed task":          {&TaskError{Exit: "unexpected status"}, []error{cluster.ErrLostAnswer}},
		"its log was lost":     {&TaskError{Exit: "unable to read tail (got 0 bytes)"}, []error{cluster.ErrLostAnswer}},
		"its log is missing":   {&TaskError{Exit: "unable to open file - No such file or directory"}, []error{cluster.ErrLostAnswer}},
		"no quorum":            {&TaskError{Exit: "unable to open file '/etc/pve/nodes/pve1/qemu-server/1.conf.tmp.9' - Permission denied"}, nil},
		"file system full":     {&TaskError{Exit: "qemu-img: /x: error while writing: No space left on device"}, []error{ErrNoSpace}},
		"volume group full":    {&TaskError{Exit: `lvcreate error: Volume group "pve" has insufficient free space (0 extents): 1280 required.`}, []error{ErrNoSpace}},
		"zfs full":             {&TaskError{Exit: "zfs error: cannot create 'rpool/x': out of space"}, []error{ErrNoSpace}},
		"unknown storage":      {&Error{Method: "GET", Status: 500, Reason: "storage 'nosuch' does not exist"}, []error{images.ErrNoStorage}},
		"another host's":       {&Error{Method: "GET", Status: 500, Reason: "storage 'only2' is not available on node 'pve1'"}, []error{images.ErrNoStorage}},
		"disabled storage":     {&Error{Method: "GET", Status: 500, Reason: "storage 'old' is disabled"}, []error{images.ErrNoStorage}},
		"zfs is busy":          {&TaskError{Exit: "zfs error: cannot rename 'rpool/data/vm-101-disk-0': dataset is busy"}, []error{cluster.ErrStorageBusy}},
		"zfs is slow":          {&TaskError{Exit: "command 'zfs rename rpool/data/vm-101-disk-0 rpool/data/vm-9001-disk-0' failed: got timeout"}, []error{cluster.ErrStorageBusy}},
		"zfs destroys nothing": {&TaskError{Exit: "zfs error: cannot destroy 'rpool/data/vm-101-disk-0': dataset is busy"}, nil},
		"zfs has no such":      {&TaskError{Exit: "zfs error: cannot open 'rpool/data/vm-101-disk-0': dataset does not exist"}, nil},
		"ceph is busy":         {&TaskError{Exit: "could not rename image 'vm-101-disk-0' to 'vm-9001-disk-0': rbd: rename error: (16) Device or resource busy"}, []error{cluster.ErrStorageBusy}},
		"ceph does not answer": {&TaskError{Exit: "could not rename image 'vm-101-disk-0' to 'vm-9001-disk-0': rbd: rename error: (110) Connection timed out"}, []error{cluster.ErrStorageBusy}},
		"ceph has no such":     {&TaskError{Exit: "could not rename image 'vm-101-disk-0' to 'vm-9001-disk-0': rbd: rename error: (2) No such file or directory"}, nil},
		"a file is busy":       {&TaskError{Exit: "rename '/mnt/pve/nfs/images/101/vm-101-disk-0.raw' to '/mnt/pve/nfs/images/9001/vm-9001-disk-0.raw' failed - Device or resource busy"}, []error{cluster.ErrStorageBusy}},
		"a file is elsewhere":  {&TaskError{Exit: "rename '/a/images/101/x.raw' to '/a/images/9001/x.raw' failed - Invalid cross-device link"}, nil},
		"list of tasks":        {&Error{Method: "POST", Status: 500, Message: "can't lock file '/var/log/pve/tasks/.active.lock' - got timeout"}, []error{cluster.ErrLostAnswer}},
		"missing volume":       {&TaskError{Exit: "volume 'local:iso/x.iso' does not exist"}, nil},
		"parameter is at odds": {&Error{Method: "PUT", Status: 400, Params: map[string]string{"scsi0": "no space left on storage"}}, []error{ErrNoSpace}},
	}, func(t *testing.T, tc row) {
		for _, s := range all {
			must.Equal(t, s.Error(), slices.Contains(tc.want, s), errors.Is(tc.err, s))
		}
	})
}

func FuzzParseError(f *testing.F) {
	f.Add(400, "400 Parameter verification failed.", `{"errors":{"a":"b"},"message":"m"}`)
	f.Add(595, "595 Connection refused", "")
	f.Add(500, "", `{"message":{"a":[1]},"errors":{"x":null}}`)
	f.Fuzz(func(t *testing.T, status int, line, body string) {
		e := parseError("POST", "/p", status, line, []byte(body))
		must.Hold(t, e.Error() != "" && e.Status == status, "lost: %+v", e)
		e.Unwrap()
	})
}

func TestHints(t *testing.T) {
	const (
		quorum  = "without quorum nothing can be written to /etc/pve"
		storage = "see what is wrong with that storage on its node"
		killed  = "the task's worker was killed, or its node went down"
	)
	c := &Conn{TokenID: "u@pve!t"}
	type row struct {
		err  error
		want string
	}
	must.Each(t, map[string]row{
		"quorum is asked for first":   {&Error{Method: "POST", Status: 500, Reason: "cluster not ready - no quorum?"}, quorum},
		"a lock without quorum":       {&Error{Method: "PUT", Status: 500, Message: "cfs-lock 'file-user_cfg' error: no quorum!\n"}, quorum},
		"a write without quorum":      {&TaskError{Exit: "unable to open file '/etc/pve/nodes/pve1/qemu-server/1.conf.tmp.9' - Permission denied"}, quorum},
		"a file of another directory": {&TaskError{Exit: "unable to open file '/mnt/pve/x/1.raw' - Permission denied"}, ""},
		"a missing directory":         {&TaskError{Exit: "unable to activate storage 'fast' - directory '/mnt/fast' does not exist or is unreachable"}, storage},
		"an unavailable share":        {&Error{Method: "GET", Status: 500, Reason: "storage 'nfs' is not online"}, storage},
		"a killed worker":             {&TaskError{Exit: "unexpected status"}, killed},
		"anything else":               {&TaskError{Exit: "bridge 'vmbr9' does not exist"}, ""},
	}, func(t *testing.T, tc row) {
		got := strings.Join(fault.Hints(c.Explain(tc.err)), "\n")
		must.Hold(t, (tc.want != "" || got == "") && strings.HasPrefix(got, tc.want), "hint %q, want %q", got, tc.want)
	})
}

func TestParseUPID(t *testing.T) {
	type row struct {
		in   string
		want UPID
		err  bool
	}
	must.Each(t, map[string]row{
		"delete": {
			in:   testUPID,
			want: UPID{Raw: testUPID, Node: "pve1", Type: "qmdestroy", ID: "101", User: "recast@pve!roll", Start: time.Unix(0x386D4380, 0), Ticks: 0x12345},
		},
		"reassign": {
			in:   "UPID:pve1:0000ABCD:0123456789:386D4380:qmmove:100-scsi1>200-scsi5:root@pam:",
			want: UPID{Raw: "UPID:pve1:0000ABCD:0123456789:386D4380:qmmove:100-scsi1>200-scsi5:root@pam:", Node: "pve1", Type: "qmmove", ID: "100-scsi1>200-scsi5", User: "root@pam", Start: time.Unix(0x386D4380, 0), Ticks: 0x123456789},
		},
		"without object": {
			in:   "UPID:n:1:2:3:imgcopy::root@pam:",
			want: UPID{Raw: "UPID:n:1:2:3:imgcopy::root@pam:", Node: "n", Type: "imgcopy", User: "root@pam", Start: time.Unix(3, 0), Ticks: 2},
		},
		"empty":             {in: "", err: true},
		"cut short":         {in: "UPID:pve1:0000ABCD:00012345:386D4380:qmdestroy:101:recast@pve!roll", err: true},
		"no hexadecimal":    {in: "UPID:pve1:x:00012345:386D4380:qmdestroy:101:root@pam:", err: true},
		"time out of range": {in: "UPID:pve1:1:1:FFFFFFFFFF:qmdestroy:101:root@pam:", err: true},
		"no node":           {in: "UPID::1:1:1:qmdestroy:101:root@pam:", err: true},
	}, func(t *testing.T, tc row) {
		got, err := ParseUPID(tc.in)
		must.Equal(t, "fails", tc.err, err != nil)
		must.Equal(t, "parsed", tc.want, got)
	})
}

func FuzzParseUPID(f *testing.F) {
	f.Add(testUPID)
	f.Add("UPID:n:1:2:3:imgcopy::root@pam:")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseUPID(s)
		if err != nil {
			return
		}
		must.Hold(t, u.Node != "" && u.Type != "" && u.Raw == s && !strings.Contains(u.ID, ":"), "%q is read as %+v", s, u)
		must.Equal(t, s, 5, strings.Count(u.Path("status"), "/"))
	})
}
