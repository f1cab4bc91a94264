package frame

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// A request passes if its Host header names this machine: at the port of the pages, or at that which
// another program has opened for them.
func TestGuard(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ port, host string }{
		"that port": {"8090", "127.0.0.1:8090"}, "by name": {"8090", "localhost:8090"}, "any port": {"", "localhost:9999"},
		"!another port": {"8090", "127.0.0.1:8091"}, "!no port": {"", "localhost"}, "!rebound": {"", "evil.example:8090"}, "!a longer name": {"", "localhost.evil.example:8090"},
		"!another address": {"", "127.0.0.2:8090"}, "!a user": {"", "localhost:8090@evil.example:8090"}, "!nothing": {"", ""}, "!IPv6": {"", "[::1]:8090"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			passed := false
			r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
			r.Host = c.host
			w := httptest.NewRecorder()
			Guard(c.port, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true })).ServeHTTP(w, r)
			want := name[0] != '!'
			must.Hold(t, passed == want && (w.Code == http.StatusForbidden) != want, "passed %t, %d", passed, w.Code)
			must.Equal(t, "policy", policy, w.Header().Get("Content-Security-Policy"))
		})
	}
}

// Only the loopback address of IPv4 is local.
func TestLocal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"127.0.0.1:0": true, "127.0.0.1:8082": true, ":8082": false, "0.0.0.0:8082": false, "127.0.0.2:8082": false, "[::1]:8082": false, "localhost:8082": false, "8082": false, "": false} {
		if _, err := Local(text); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Links of runbooks lead to another one, or to where the documentation is published.
func TestLinked(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{
		"no-join.md": "no-join", "../notes/proxmox.md#undo-by-hand": "https://github.com/recast-sh/recast/blob/main/docs/runbooks/../notes/proxmox.md#undo-by-hand",
		"https://example.com/a.md": "https://example.com/a.md", "#here": "#here",
	} {
		must.Equal(t, to, want, linked(to))
	}
}
