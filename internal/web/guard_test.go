package web

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Who may read a page: only the browser that has opened the first URL, at an address of
// this machine.
func TestGuard(t *testing.T) {
	t.Parallel()
	v := open(t, options(t.TempDir(), "text"))
	cases := map[string]struct {
		host, path, cookie string
		want               int
	}{
		"the user":                     {host, v.site.frame.Base, v.jar.Value, 200},
		"by name":                      {"localhost:8123", v.site.frame.Base, v.jar.Value, 200},
		"a name that resolves to here": {"evil.example:8123", v.site.frame.Base, v.jar.Value, 403},
		"that, with the token":         {"evil.example:8123", v.site.First(), "", 403},
		"another port":                 {"127.0.0.1:8124", v.site.frame.Base, v.jar.Value, 403},
		"no port":                      {"127.0.0.1", v.site.frame.Base, v.jar.Value, 403},
		"another address":              {"127.0.0.2:8123", v.site.frame.Base, v.jar.Value, 403},
		"no cookie":                    {host, v.site.frame.Base, "", 403},
		"a guessed cookie":             {host, v.site.frame.Base, strings.Repeat("A", len(v.jar.Value)), 403},
		"the token as a cookie":        {host, v.site.frame.Base, v.site.token, 403},
		"a guessed token":              {host, "/" + strings.Repeat("A", len(v.site.token)), "", 403},
		"the root":                     {host, "/", "", 403},
		"the style without a cookie":   {host, v.site.frame.Base + "style.css", "", 403},
		"the style":                    {host, v.site.frame.Base + "style.css", v.jar.Value, 200},
		"the script":                   {host, v.site.frame.Base + "live.js", v.jar.Value, 200},
		"no such page":                 {host, v.site.frame.Base + "etc/passwd", v.jar.Value, 404},
		"out of the pages":             {host, "/other/", v.jar.Value, 404},
		"no such run":                  {host, v.site.frame.Base + "history/..%2f..%2fx", v.jar.Value, 404},
		"no such runbook":              {host, v.site.frame.Base + "runbooks/README", v.jar.Value, 404},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodGet, "http://"+c.host+c.path, nil)
			if c.cookie != "" {
				r.AddCookie(&http.Cookie{Name: cookie, Value: c.cookie})
			}
			w := httptest.NewRecorder()
			v.h.ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("%d, want %d: %s", w.Code, c.want, w.Body)
			}
			if policy := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") {
				t.Errorf("policy %q", policy)
			}
			if c.want == 403 && (len(w.Result().Cookies()) > 0 || strings.Contains(w.Body.String(), v.site.frame.Base)) {
				t.Errorf("it gives something away: %s", w.Body)
			}
		})
	}
}

// No script, and no server on another port of this machine, gets the cookie.
func TestCookie(t *testing.T) {
	t.Parallel()
	v := open(t, options(t.TempDir(), "text"))
	c := v.jar
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != v.site.frame.Base || len(v.site.frame.Base) < 20 || c.Domain != "" || c.MaxAge != 0 || !c.Expires.IsZero() {
		t.Errorf("cookie %+v", c)
	}
	if v.site.token == v.site.session || strings.Contains(v.site.frame.Base, v.site.token) || len(v.site.token) < 20 {
		t.Error("the token is in the address of every page, or short")
	}
}

// Reading again needs a page of ours; nothing else is sent to the site.
func TestReadingAgain(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		what, origin string
		want         int
	}{
		"a button":          {keyDrift, "http://" + host, 303},
		"another site":      {keyDrift, "https://evil.example", 403},
		"another port":      {keyDrift, "http://127.0.0.1:9999", 403},
		"a sandboxed frame": {keyDrift, "null", 403},
		"no origin":         {keyDrift, "", 403},
		"nothing":           {"", "http://" + host, 400},
		"something else":    {"roll", "http://" + host, 400},
		"no node":           {keyNode, "http://" + host, 400},
		"too much":          {keyNode + strings.Repeat("a", 2000), "http://" + host, 400},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := open(t, options(t.TempDir(), "text"))
			if w := v.post(c.what, c.origin); w.Code != c.want {
				t.Errorf("%d, want %d: %s", w.Code, c.want, w.Body)
			}
			if waits := len(v.site.readings.queue) > 0; waits != (c.want == 303) {
				t.Errorf("something is read: %t", waits)
			}
		})
	}
	v := open(t, options(t.TempDir(), "text"))
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		r := httptest.NewRequest(method, "http://"+host+v.site.frame.Base+"read?what=drift", nil)
		r.Header.Set("Origin", "http://"+host)
		if w := v.ask(r); w.Code < 400 || len(v.site.readings.queue) > 0 {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
}

// Serve answers on its port only, reads the cluster at once, and ends with ctx.
func TestServe(t *testing.T) {
	t.Parallel()
	s, err := New(options(t.TempDir(), "text"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	answer, err := http.Get("http://" + l.Addr().String() + s.First())
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK || len(answer.Cookies()) != 1 {
		t.Errorf("%s, %v", answer.Status, answer.Cookies())
	}
	for _, key := range []string{keyDrift, keyPlan, keyStatus} {
		if now := s.readings.get(key); !now.busy() && now.Value == nil {
			t.Errorf("%s is not read", key)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
