package registry

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/recast-sh/recast/internal/sim/network"
	bounds "github.com/recast-sh/recast/internal/transport"
)

// over lets a test talk HTTP to a handler in a bubble.
func over(t *testing.T, h http.Handler, test func(http.RoundTripper)) {
	t.Helper()
	net := network.Memory()
	l := must(net.Listen(host))(t)
	server := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.Serve(l) }() // returns when the server is closed
	transport := &http.Transport{DialContext: net.Dialer().DialContext}
	test(transport)
	transport.CloseIdleConnections()
	noError(t, server.Close())
	time.Sleep(time.Second) // the bubble's time: a server lingers if a body was not read to its end
}

// TestStallsOverHTTP: http.Transport releases a body that a watch ends.
func TestStallsOverHTTP(t *testing.T) {
	t.Parallel()
	t.Run("a download", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			content := bytes.Repeat([]byte("0123456789"), 10_000)
			ranges := 0
			over(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Range") != "" {
					ranges++
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
					return
				}
				w.Header().Set("Content-Length", "100000")
				_, _ = w.Write(content[:50_000])
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}), func(transport http.RoundTripper) {
				begun := time.Now()
				got, err := fetch(t.Context(), t, transport, "/v2/a/blobs/sha256:0")
				if err != nil || got != string(content) || ranges != 1 {
					t.Errorf("%d bytes, %d ranges, %v", len(got), ranges, err)
				}
				if took := time.Since(begun); took != limits.Stall+limits.Pause {
					t.Errorf("it took %s", took)
				}
			})
		})
	})
	t.Run("an upload", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			tested := make(chan struct{})
			over(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, 1000)
				<-tested // a server does not notice a lost client before it has read the body
			}), func(transport http.RoundTripper) {
				defer close(tested)
				req := must(http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://"+host+"/v2/a/blobs/uploads/1", bytes.NewReader(make([]byte, 10<<20))))(t)
				begun := time.Now()
				resp, err := limited(transport).RoundTrip(req)
				if err == nil {
					t.Fatal(resp.Body.Close())
				}
				if stalled, ok := errors.AsType[*bounds.Stalled](err); !ok || !stalled.Temporary() {
					t.Errorf("error is %v", err)
				}
				if took := time.Since(begun); took != limits.Stall {
					t.Errorf("it took %s", took)
				}
			})
		})
	})
}

func TestUsualLogins(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("REGISTRY_AUTH_FILE", "")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GITHUB_ACTOR", "octocat")
	t.Setenv("GITHUB_TOKEN", "secret")
	c := must(New(Options{}))(t)
	for registry, want := range map[string]string{"ghcr.io": "octocat", "registry.example": ""} {
		auth := must(c.keychain.Resolve(must(name.NewRegistry(registry))(t)))(t)
		if got := must(authn.Authorization(t.Context(), auth))(t); got.Username != want {
			t.Errorf("%s: user %q, want %q", registry, got.Username, want)
		}
	}
}
