package factory

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
)

func getVersions(ctx context.Context, c *Client) error { _, err := c.Versions(ctx); return err }

func register(ctx context.Context, c *Client) error {
	_, _, err := c.Register(ctx, "customization: {}\n")
	return err
}

// TestTrouble makes the simulated factory, or a proxy before it, misbehave, and
// checks what the user is told and how long it takes.
func TestTrouble(t *testing.T) {
	t.Parallel()
	const who = "image factory http://" + addr + ": "
	again := func(what, wait, n string) string { return what + ", trying again in " + wait + " (" + n + ")" }
	const down, limited = "the factory answered 503 Service Unavailable", "the factory answered 429 Too Many Requests"
	const failing, broke = "the factory answered 500 Internal Server Error", "no complete answer from the factory"
	type row struct {
		trouble factoryapi.Trouble
		times   int
		ask     func(context.Context, *Client) error
		notes   []string
		took    time.Duration
		err     string
		hint    string
	}
	eachInBubble(t, map[string]row{
		"a proxy without its factory": {
			factoryapi.Down(503, 0), 2, getVersions,
			[]string{again(down, "1s", "2 of 5"), again(down, "2s", "3 of 5")},
			3 * time.Second, "", "",
		},
		"for good": {
			factoryapi.Down(503, 0), 100, getVersions,
			[]string{again(down, "1s", "2 of 5"), again(down, "2s", "3 of 5"), again(down, "4s", "4 of 5"), again(down, "8s", "5 of 5")},
			15 * time.Second, who + "503 Service Unavailable: 503 Service Temporarily Unavailable (asked 5 times)", "",
		},
		"too often": {factoryapi.Down(429, 30*time.Second), 1, getVersions, []string{again(limited, "30s", "2 of 5")}, 30 * time.Second, "", ""},
		"far too often": {
			factoryapi.Down(429, time.Hour), 1, getVersions, nil, 0, who + "429 Too Many Requests: 429 Too Many Requests",
			"the factory limits how often it answers: wait a while",
		},
		"its own trouble": {
			factoryapi.Failing(), 2, getVersions, []string{again(failing, "1s", "2 of 3"), again(failing, "2s", "3 of 3")}, 3 * time.Second, "", "",
		},
		"its own trouble, for good": {
			factoryapi.Failing(), 100, getVersions,
			[]string{again(failing, "1s", "2 of 3"), again(failing, "2s", "3 of 3")},
			3 * time.Second,
			who + "500 Internal Server Error: internal server error (asked 3 times)",
			"the reason is in the factory's own log; a malformed Talos version is one, a registry that it can't reach another",
		},
		"a broken connection":      {factoryapi.Refused(), 1, getVersions, []string{again(broke+" (EOF)", "1s", "2 of 5")}, time.Second, "", ""},
		"an answer that breaks":    {factoryapi.Cut(5), 1, getVersions, []string{again(broke+" (unexpected EOF)", "1s", "2 of 5")}, time.Second, "", ""},
		"an answer that stalls":    {factoryapi.Stall(5), 1, getVersions, []string{again(broke+" (nothing came for 1m0s)", "1s", "2 of 5")}, 61 * time.Second, "", ""},
		"a schematic":              {factoryapi.Down(502, 0), 1, register, []string{again("the factory answered 502 Bad Gateway", "1s", "2 of 5")}, time.Second, "", ""},
		"a schematic, answer lost": {factoryapi.Cut(0), 1, register, []string{again(broke+" (unexpected EOF)", "1s", "2 of 5")}, time.Second, "", ""},
		"a refusal": {
			factoryapi.Down(403, 0), 1, register, nil, 0, who + "403 Forbidden: 403 Forbidden",
			"the schematic belongs to someone else, or a proxy denies access from here",
		},
	}, func(t *testing.T, tc row) {
		s := newSite(t)
		s.factory.Strike(tc.times, "/", tc.trouble)
		start := time.Now()
		err := tc.ask(t.Context(), s.client)
		if took := time.Since(start); took != tc.took {
			t.Errorf("took %s, want %s", took, tc.took)
		}
		s.said(t, tc.notes, err, tc.err, tc.hint)
	})
}

// said compares what the user is told.
func (s *site) said(t *testing.T, notes []string, err error, text, hint string) {
	t.Helper()
	same(t, "notes", notes, s.notes)
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got != text {
		t.Errorf("error\n got %s\nwant %s", got, text)
	}
	if got := strings.Join(fault.Hints(err), "; "); got != hint {
		t.Errorf("hint\n got %s\nwant %s", got, hint)
	}
}

func TestCancelEndsRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := serve(t, answer(503, "")).Versions(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || len(fault.Hints(err)) > 0 {
			t.Errorf("error = %v, hints %v", err, fault.Hints(err))
		}
	})
}

// TestSilentFactory: a factory that accepts a request and never answers.
func TestSilentFactory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		start := time.Now()
		_, err := c.Versions(t.Context())
		if err == nil || !strings.Contains(err.Error(), "no answer within 3m0s (asked 5 times)") {
			t.Errorf("error = %v", err)
		}
		if took, want := time.Since(start), attempts*answerWithin+15*time.Second; took != want {
			t.Errorf("took %s, want %s", took, want)
		}
	})
}

// TestUntrusted: an error that would repeat is not retried.
func TestUntrusted(t *testing.T) {
	t.Parallel()
	requests := 0
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests++ }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	c, err := New(Options{URL: server.URL})
	noError(t, err)
	defer c.Close()
	_, err = c.Versions(t.Context())
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); !ok || requests > 0 || strings.Contains(err.Error(), "times") {
		t.Errorf("error = %v after %d requests", err, requests)
	}
}

// TestRetryAfter reads both forms of the header.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for text, want := range map[string]time.Duration{
			"": 0, "soon": 0, "-1": 0, "7": 7 * time.Second, "99999999999999999999": 0,
			time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat): 90 * time.Second,
			time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat):       0,
		} {
			if got := retryAfter(&http.Response{Header: http.Header{"Retry-After": {text}}}); got != want {
				t.Errorf("%q: %s, want %s", text, got, want)
			}
		}
	})
}

// TestPages: a web page is reported in one line.
func TestPages(t *testing.T) {
	t.Parallel()
	page := func(status int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	const who = "image factory http://" + addr + ": "
	type row struct {
		answer http.HandlerFunc
		want   string
	}
	eachInBubble(t, map[string]row{
		"a proxy's": {
			page(403, "text/html; charset=utf-8", "<!DOCTYPE html>\n<html><head><style>p {}</style>\n<title>\n Blocked &amp; logged </title></head><body><p>…</body>"),
			who + "403 Forbidden: Blocked & logged",
		},
		"without a title": {
			page(403, "text/html", "<html><head><style>p {}</style></head><body><p>Go <b>away</b></p>\n"+strings.Repeat("x", 1000)+"</body>"),
			who + "403 Forbidden: Go away " + strings.Repeat("x", maxPage-8) + "…",
		},
		"a portal that says yes": {
			page(200, "text/html", "<html><title>Log in</title></html>"),
			who + "200 OK: a web page instead of an answer: Log in",
		},
		"JSON of another kind": {
			page(200, "application/json", `{"error":"x"}`),
			who + "GET http://" + addr + "/versions: the answer can't be read: json: cannot unmarshal object into Go value of type []string",
		},
		"commands for a terminal": {page(404, "text/plain", "a\x1b[2J\x07b\r\nc\n"), who + "404 Not Found: a\ufffdb c"},
	}, func(t *testing.T, tc row) {
		_, err := serve(t, tc.answer).Versions(t.Context())
		if err == nil || err.Error() != tc.want {
			t.Errorf("error\n got %v\nwant %s", err, tc.want)
		}
	})
}

// TestRedirects: which ones are not followed, and that no signed URL is shown.
func TestRedirects(t *testing.T) {
	t.Parallel()
	to := func(where string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, where, http.StatusFound) }
	}
	type row struct {
		answer http.HandlerFunc
		ask    func(context.Context, *Client) error
		want   string
	}
	eachInBubble(t, map[string]row{
		"in a circle": {to("/versions"), getVersions, "redirected more than 5 times"},
		"a POST": {
			to("https://factory.example/schematics"), register,
			"redirected to https://factory.example, which a POST does not follow: use that URL in images.factory",
		},
		"nowhere": {to("http://store.example/a?X-Amz-Signature=secret"), getVersions, `Get "http://store.example/a": `},
	}, func(t *testing.T, tc row) {
		err := tc.ask(t.Context(), serve(t, tc.answer))
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("error = %v, want %s", err, tc.want)
		}
	})
	plain, _ := http.NewRequest(http.MethodGet, "http://store.example/", nil)
	secure, _ := http.NewRequest(http.MethodGet, "https://factory.example/", nil)
	if err := follow(plain, []*http.Request{secure}); err == nil || err.Error() != "redirected to store.example, which is not encrypted" {
		t.Errorf("from https to http: %v", err)
	}
}

// TestBroken: a factory that does not know the parameter has no list of broken versions.
func TestBroken(t *testing.T) {
	t.Parallel()
	type row struct {
		broken string
		want   []string
	}
	eachInBubble(t, map[string]row{
		"none":              {"[]", nil},
		"one":               {`["v1.9.0"]`, []string{"v1.9.0"}},
		"an older factory":  {`["v1.13.8","v1.13.9"]`, nil},
		"none, as Go's nil": {"null", nil},
	}, func(t *testing.T, tc row) {
		c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("broken") == "true" {
				_, _ = io.WriteString(w, tc.broken)
				return
			}
			_, _ = io.WriteString(w, `["v1.13.8","v1.13.9"]`)
		}))
		got, err := c.Broken(t.Context())
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
}

// TestKeys: a key, none, and an invalid one.
func TestKeys(t *testing.T) {
	t.Parallel()
	const block = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
	signing := func(ctx context.Context, c *Client) ([]byte, error) { return c.SigningKey(ctx) }
	secureBoot := func(ctx context.Context, c *Client) ([]byte, error) { return c.SecureBootCertificate(ctx) }
	type row struct {
		ask    func(context.Context, *Client) ([]byte, error)
		answer http.HandlerFunc
		want   string
		err    string
		kind   fault.Kind
	}
	eachInBubble(t, map[string]row{
		"a key":              {signing, answer(200, block), block, "", fault.Failed},
		"a keyless factory":  {signing, answer(200, ""), "", "", fault.Failed},
		"an older factory":   {signing, answer(404, "404 page not found"), "", "", fault.Failed},
		"something else":     {signing, answer(200, "hello"), "", "the signing key is not PEM", fault.Failed},
		"a certificate":      {secureBoot, answer(200, block), block, "", fault.Failed},
		"no secure boot":     {secureBoot, answer(500, "internal server error"), "", "certificate for Secure Boot: ", fault.Config},
		"not a certificate":  {secureBoot, answer(200, ""), "", "the certificate for Secure Boot is not PEM", fault.Failed},
		"not for the public": {secureBoot, answer(401, ""), "", "401 Unauthorized", fault.Failed},
	}, func(t *testing.T, tc row) {
		got, err := tc.ask(t.Context(), serve(t, tc.answer))
		if string(got) != tc.want || (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%q, %v; want %q, %q", got, err, tc.want, tc.err)
		}
		if fault.KindOf(err) != tc.kind {
			t.Errorf("kind = %v, want %v", fault.KindOf(err), tc.kind)
		}
	})
}

var isoRequest = images.ISORequest{SchematicID: "abc", Talos: "v1.13.9", Platform: "nocloud", Arch: "amd64"}
