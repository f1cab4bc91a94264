package api

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
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
				s := apitest.NewSite(t)
				pve1 := s.Node(t, "pve1")
				pve1.On(request, tc.answers...)
				var got string
				err := connTo(t, s, "pve1").Get(t.Context(), "/cluster/nextid", &got)
				if tc.err == "" && (err != nil || got != "100") || tc.err != "" && fmt.Sprint(err) != tc.err {
					t.Errorf("got %q, error %v; want error %q", got, err, tc.err)
				}
				same(t, "requests", tc.want, pve1.Requests())
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
					s := apitest.NewSite(t)
					pve1 := s.Node(t, "pve1")
					pve1.On(method+" /nodes/pve1/qemu/101/config", tc.answers...)
					err := connTo(t, s, "pve1").Change(t.Context(), method, "/nodes/pve1/qemu/101/config", nil, nil)
					if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
						t.Errorf("error is %v, want %q", err, tc.err)
					}
					if errors.Is(err, cluster.ErrLostAnswer) {
						t.Errorf("%v: nothing was done", err)
					}
					same(t, "sent", tc.times, len(pve1.Requests()))
				})
			})
		}
	}
}

func TestChangeGoesToAnotherEndpointIfNothingWasSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.NewSite(t)
		pve2 := s.Node(t, "pve2")
		pve2.On("PUT /nodes/pve1/qemu/101/config", data("null"))
		c := connTo(t, s, "pve1", "pve2") // nothing listens at pve1
		for range 2 {
			must(t, c.Change(t.Context(), http.MethodPut, "/nodes/pve1/qemu/101/config", map[string]string{"cores": "2"}, nil))
		}
		want := []string{"PUT /nodes/pve1/qemu/101/config", "PUT /nodes/pve1/qemu/101/config"}
		same(t, "requests", want, pve2.Requests())
		same(t, "first endpoint", int64(1), c.relay.current.Load())
	})
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := Options{Endpoints: []string{"https://pve1:8006"}, Token: []byte(apitest.Token)}
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
		"CA without a PEM": {func(o *Options) { o.CAFile = "conn.go" }, "conn.go holds no PEM certificate"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := good
			tc.change(&o)
			_, err := Connect(o)
			if fmt.Sprint(err) != tc.want || fault.KindOf(err) != fault.Config {
				t.Errorf("error %v of kind %v, want %q", err, fault.KindOf(err), tc.want)
			}
		})
	}
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	got, err := parseEndpoints([]string{"https://pve1/", "https://[::1]:443", "https://pve2.example"})
	must(t, err)
	want := []string{net.JoinHostPort("pve1", "8006"), "[::1]:443", "pve2.example:8006"}
	for i, u := range got {
		if u.Host != want[i] {
			t.Errorf("host %q, want %q", u.Host, want[i])
		}
	}
}
