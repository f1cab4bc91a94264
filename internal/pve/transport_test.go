package pve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

func TestReadIsRepeated(t *testing.T) {
	t.Parallel()
	const request = "GET /cluster/nextid"
	again := []string{request, request}
	cases := map[string]struct {
		answers []route
		want    []string // requests that arrive
		err     string
	}{
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
			[]route{raw("599 Too many redirections", "")},
			[]string{request, request, request, request},
			"GET /cluster/nextid: 599 Too many redirections",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				pve1 := s.node(t, "pve1")
				pve1.on(request, tc.answers...)
				var got string
				err := s.client(t, "pve1").conn.get(t.Context(), "/cluster/nextid", &got)
				if tc.err == "" && (err != nil || got != "100") || tc.err != "" && fmt.Sprint(err) != tc.err {
					t.Errorf("got %q, error %v; want error %q", got, err, tc.err)
				}
				if diff := cmp.Diff(tc.want, pve1.requests()); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
			})
		})
	}
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
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := newSite(t)
					pve1 := s.node(t, "pve1")
					pve1.on(method+" /nodes/pve1/qemu/101/config", tc.answers...)
					err := s.client(t, "pve1").conn.change(t.Context(), method, "/nodes/pve1/qemu/101/config", nil, nil)
					if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
						t.Errorf("error is %v, want %q", err, tc.err)
					}
					if errors.Is(err, cluster.ErrLostAnswer) {
						t.Errorf("%v: nothing was done", err)
					}
					if n := len(pve1.requests()); n != tc.times {
						t.Errorf("sent %d times, want %d", n, tc.times)
					}
				})
			})
		}
	}
}

func TestChangeIsNeverRepeated(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		answer route
		lost   bool
	}{
		"proxy could not connect":  {raw("595 No route to host", ""), true},
		"proxy lost it":            {raw("596 Connection timed out", ""), true},
		"connection breaks":        {lost, true},
		"answer breaks off":        {raw("200 OK\r\nContent-Length: 99", `{"da`), true},
		"success without the task": {raw("200 OK", ""), true},
		"null instead of a task":   {data("null"), true},
		"reason of two lines":      {raw("500 detected modified\nconfiguration", ""), true},
		"no answer at all":         {after(2*headerTimeout, data(`"x"`)), true},
		"refused":                  {raw("500 VM 101 is running - destroy failed", ""), false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				pve1 := s.node(t, "pve1")
				pve1.on("DELETE /nodes/pve1/qemu/101", tc.answer)
				s.node(t, "pve2").on("DELETE /nodes/pve1/qemu/101", data(`"`+testUPID+`"`))
				err := s.client(t, "pve1", "pve2").DeleteVM(t.Context(), cluster.VM{ID: 101, Host: "pve1"})
				if err == nil || errors.Is(err, cluster.ErrLostAnswer) != tc.lost {
					t.Errorf("error %v; want a lost answer: %v", err, tc.lost)
				}
				if diff := cmp.Diff([]string{"DELETE /nodes/pve1/qemu/101"}, changes(pve1.requests())); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestChangeGoesToAnotherEndpointIfNothingWasSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve2 := s.node(t, "pve2")
		pve2.on("PUT /nodes/pve1/qemu/101/config", data("null"))
		vm := cluster.VM{ID: 101, Host: "pve1", Digest: "d"}
		c := s.client(t, "pve1", "pve2") // nothing listens at pve1
		for range 2 {
			if err := c.SetConfig(t.Context(), vm, map[string]string{"cores": "2"}, nil); err != nil {
				t.Fatal(err)
			}
		}
		want := []string{"PUT /nodes/pve1/qemu/101/config", "PUT /nodes/pve1/qemu/101/config"}
		if diff := cmp.Diff(want, pve2.requests()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		if got := c.conn.transport.current.Load(); got != 1 {
			t.Errorf("asks endpoint %d first, not the one that last answered", got)
		}
	})
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		err := s.client(t, "pve1", "pve2").DeleteVM(t.Context(), cluster.VM{ID: 101, Host: "pve1"})
		const want = "DELETE /nodes/pve1/qemu/101: reach Proxmox: pve1:8006: dial tcp pve1:8006: no route to host; pve2:8006: dial tcp pve2:8006: no route to host"
		if fmt.Sprint(err) != want || errors.Is(err, cluster.ErrLostAnswer) {
			t.Errorf("error is %v\nwant    %s", err, want)
		}
		if hints := fault.Hints(err); len(hints) != 1 || !strings.Contains(hints[0], "proxmox.endpoints") {
			t.Errorf("hints: %q", hints)
		}
	})
}

func TestServerThatNeverSpeaks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		c := s.clientWith(t, Options{Dial: silentDial}, "pve1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		err := c.DeleteVM(ctx, cluster.VM{ID: 101, Host: "pve1"})
		if took := time.Since(start); err == nil || took > 2*time.Minute {
			t.Errorf("error %v after %s", err, took)
		}
		if errors.Is(err, cluster.ErrLostAnswer) {
			t.Errorf("nothing was sent, yet: %v", err)
		}
	})
}

func TestCancelledChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.node(t, "pve1").on("DELETE /nodes/pve1/qemu/101", after(10*time.Second, data(`"`+testUPID+`"`)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := s.client(t, "pve1").DeleteVM(ctx, cluster.VM{ID: 101, Host: "pve1"})
		if !errors.Is(err, cluster.ErrLostAnswer) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		err = s.client(t, "pve1").DeleteVM(ctx, cluster.VM{ID: 101, Host: "pve1"})
		if errors.Is(err, cluster.ErrLostAnswer) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the deadline: %v", err)
		}
	})
}

func TestSecretIsNeverShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.node(t, "pve1")
		var authorized atomic.Bool
		pve1.on("GET /access/permissions?path=%2F", func(w http.ResponseWriter, r *http.Request) {
			authorized.Store(r.Header.Get("Authorization") == "PVEAPIToken="+testToken)
			raw("500 who is "+testSecret, `{"message":"`+testSecret+`","errors":{"a":"`+testSecret+`"}}`)(w, r)
		})
		c := s.client(t, "pve1")
		_, err := c.Permissions(t.Context(), "/")
		e, ok := errors.AsType[*Error](err)
		if !ok || !authorized.Load() {
			t.Fatalf("error %v, authorized %v", err, authorized.Load())
		}
		o := Options{Token: []byte(testToken)}
		for _, s := range []string{fmt.Sprintf("%v %+v", err, *e), fmt.Sprintf("%v %+v %#v", c, c, c), fmt.Sprintf("%v %+v %#v", o, o, o)} {
			if strings.Contains(s, testSecret) {
				t.Errorf("shows the secret: %s", s)
			}
		}
	})
}

func TestAuthorizationHints(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		answer route
		kind   fault.Kind
		hint   string
	}{
		"unknown token":     {raw("401 invalid token value!", ""), fault.Failed, "PROXMOX_VE_API_TOKEN is user@realm!id=uuid"},
		"missing privilege": {raw("403 Permission check failed (/vms/9011, VM.Config.Disk)", ""), fault.Refused, "recast@pve!roll needs VM.Config.Disk on /vms/9011, and so does its user: recast doctor"},
		"forbidden":         {raw("403 Permission check failed", ""), fault.Refused, "pveum user token permissions recast@pve roll"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				s.node(t, "pve1").on("GET /cluster/status", tc.answer)
				_, err := s.client(t, "pve1").Quorate(t.Context())
				if hints := fault.Hints(err); len(hints) != 1 || !strings.Contains(hints[0], tc.hint) {
					t.Errorf("hints of %v: %q", err, hints)
				}
				if got := fault.KindOf(err); got != tc.kind {
					t.Errorf("kind %v, want %v", got, tc.kind)
				}
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := Options{Endpoints: []string{"https://pve1:8006"}, Token: []byte(testToken)}
	cases := map[string]struct {
		change func(*Options)
		want   string
	}{
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
		"CA without a PEM": {func(o *Options) { o.CAFile = "client.go" }, "client.go holds no PEM certificate"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := good
			tc.change(&o)
			_, err := New(o)
			if fmt.Sprint(err) != tc.want || fault.KindOf(err) != fault.Config {
				t.Errorf("error %v of kind %v, want %q", err, fault.KindOf(err), tc.want)
			}
		})
	}
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	got, err := parseEndpoints([]string{"https://pve1/", "https://[::1]:443", "https://pve2.example"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{net.JoinHostPort("pve1", "8006"), "[::1]:443", "pve2.example:8006"}
	for i, u := range got {
		if u.Host != want[i] {
			t.Errorf("host %q, want %q", u.Host, want[i])
		}
	}
}
