package api

import (
	"cmp"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
)

func TestTrust(t *testing.T) {
	t.Parallel()
	other := strings.Repeat("00:", 31) + "00"
	cases := map[string]struct {
		options func(*testing.T, *apitest.Site) Options
		host    string
		err     string // part of it
		hint    string
	}{
		"authority": {options: func(_ *testing.T, s *apitest.Site) Options { return Options{RootCAs: s.Pool()} }},
		"authority from a file": {options: func(t *testing.T, s *apitest.Site) Options {
			path := filepath.Join(t.TempDir(), "ca.pem")
			must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Cert.Leaf.Raw}), 0o600))
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
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := apitest.NewSite(t)
				host := cmp.Or(tc.host, "pve1")
				first, second := s.Node(t, host), s.Node(t, "pve2")
				for _, n := range []*fake{first, second} {
					n.On("GET /cluster/status", data(`[{"type":"cluster","quorate":1}]`))
				}
				err := connWith(t, s, tc.options(t, s), host, "pve2").Get(t.Context(), "/cluster/status", new(any))
				if tc.err == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error is %v, want %q in it", err, tc.err)
				}
				if hints := fmt.Sprint(fault.Hints(err)); !strings.Contains(hints, tc.hint) {
					t.Errorf("hints are %s, want %q in them", hints, tc.hint)
				}
				if len(first.Requests())+len(second.Requests()) > 0 {
					t.Error("a request went to a server that is not trusted")
				}
			})
		})
	}
}

// TestCertificateThatRanOut: a CA does not help, and the hint says so.
func TestCertificateThatRanOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.NewSite(t)
		s.Node(t, "pve1")
		time.Sleep(time.Until(s.Cert.Leaf.NotAfter) + time.Second)
		err := connTo(t, s, "pve1").Get(t.Context(), "/cluster/status", new(any))
		why, wrongName := Untrusted(err)
		if hints := fmt.Sprint(fault.Hints(err)); !strings.Contains(why, "expired") || wrongName || !strings.Contains(hints, "this machine's clock") || strings.Contains(hints, "caFile") {
			t.Errorf("%v: %q, %t, %s", err, why, wrongName, hints)
		}
	})
}

func TestUntrusted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.NewSite(t)
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
			if why, wrongName := Untrusted(err); !strings.Contains(why, want.why) || wrongName != want.wrongName {
				t.Errorf("%s: %q, %t: %v", host, why, wrongName, err)
			}
		}
		if why, _ := Untrusted(errors.New("refused")); why != "" {
			t.Errorf("another error: %q", why)
		}
	})
}

func TestWrongFingerprintShowsBoth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.NewSite(t)
		s.Node(t, "pve1")
		err := connWith(t, s, Options{Fingerprint: strings.Repeat("ab", 32)}, "pve1").Get(t.Context(), "/cluster/status", new(any))
		e, ok := errors.AsType[*FingerprintError](err)
		if !ok || e.Got != s.Fingerprint() || e.Addr != "pve1:8006" || len(e.Want) != 1 || e.Want[0] != strings.Repeat("AB:", 31)+"AB" {
			t.Errorf("error is %+v", err)
		}
	})
}
