package factory

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/schematics"
	"github.com/siderolabs/image-factory/pkg/schematic"
)

const addr = "127.0.0.1:8080"

// serve runs a handler on an in-memory network of this bubble and returns a client to it.
func serve(t *testing.T, h http.Handler) *Client {
	t.Helper()
	n := network.Memory()
	must.Do(t, listen(t, n, addr, h))
	c := must.Get(New(Options{URL: "http://" + addr, Transport: &http.Transport{DialContext: n.Dialer().DialContext}}))(t)
	t.Cleanup(func() { must.Do(t, c.Close()) })
	return c
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestExtensions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /version/v1.13.9/extensions/official", answer(http.StatusOK, `[
			{"name":"siderolabs/zfs","ref":"127.0.0.1:5000/siderolabs/zfs:2.3-v1","digest":"sha256:11","author":"A","description":"D"},
			{"name":"siderolabs/odd","ref":"127.0.0.1:5000/siderolabs/odd","digest":"sha256:22"}]`))
		mux.HandleFunc("GET /versions", answer(http.StatusOK, `["v1.13.8","v1.13.9"]`))
		c := serve(t, mux)
		got := must.Get(c.Extensions(t.Context(), "v1.13.9"))(t)
		want := []schematics.OfficialExtension{
			{Name: "siderolabs/zfs", Version: "2.3-v1", Ref: "127.0.0.1:5000/siderolabs/zfs", Digest: "sha256:11", Author: "A", Description: "D"},
			{Name: "siderolabs/odd", Ref: "127.0.0.1:5000/siderolabs/odd", Digest: "sha256:22"},
		}
		must.Equal(t, "extensions", want, got)
		must.Equal(t, "versions", []string{"v1.13.8", "v1.13.9"}, must.Get(c.Versions(t.Context()))(t))
	})
}

// schematicStore answers as a factory does for its schematics.
func schematicStore() http.Handler {
	known := map[string]string{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /schematics", func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		doc, err := schematic.Unmarshal(data)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		id, _ := doc.ID()
		text, _ := doc.Marshal()
		known[id] = string(text)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]string{"id": id, "schematic": string(text)})
	})
	mux.HandleFunc("GET /schematics/{id}", func(w http.ResponseWriter, r *http.Request) {
		text, ok := known[r.PathValue("id")]
		if !ok {
			http.Error(w, "schematic not found", http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, text)
	})
	return mux
}

func TestRegister(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := serve(t, schematicStore())
		s := must.Get(schematics.Parse("s.yaml", []byte("customization: {extraKernelArgs: [\"yes\", \"1.10\"], systemExtensions: {officialExtensions: [siderolabs/zfs]}}\n")))(t)
		must.Equal(t, "before", false, must.Get(c.Knows(t.Context(), s.ID()))(t))
		if id, stored, err := c.Register(t.Context(), s.Canonical()); id != s.ID() || stored != s.Canonical() || err != nil {
			t.Errorf("ID %s, want %s; %v; stored:\n%s", id, s.ID(), err, stored)
		}
		must.Equal(t, "after", true, must.Get(c.Knows(t.Context(), s.ID()))(t))
	})
}

// TestRefusals: the factory's message is passed on, with the right kind.
func TestRefusals(t *testing.T) {
	t.Parallel()
	extensions := func(c *Client, ctx context.Context) error {
		_, err := c.Extensions(ctx, "v9.9.9")
		return err
	}
	register := func(c *Client, ctx context.Context) error {
		_, _, err := c.Register(ctx, "customization: {}\n")
		return err
	}
	knows := func(c *Client, ctx context.Context) error {
		_, err := c.Knows(ctx, "abc")
		return err
	}
	req := images.ISORequest{SchematicID: "abc", Talos: "v9.9.9", Platform: "nocloud", Arch: "amd64"}
	iso := func(c *Client, ctx context.Context) error {
		body, _, err := c.Image(ctx, images.BootISO, req, nil)
		if body != nil {
			return errors.Join(err, body.Close())
		}
		return err
	}
	const who = "image factory http://127.0.0.1:8080: "
	type row struct {
		ask    func(*Client, context.Context) error
		status int
		body   string
		want   string
		kind   fault.Kind
		hint   string
	}
	eachInBubble(t, map[string]row{
		"unknown version": {
			extensions, 404, "version v9.9.9 is not available\n", who + "404 Not Found: version v9.9.9 is not available", fault.Config,
			"http://127.0.0.1:8080/versions lists the Talos versions that it builds",
		},
		"malformed version": {
			extensions, 500, "internal server error", who + "500 Internal Server Error: internal server error (asked 3 times)", fault.Failed,
			"the reason is in the factory's own log; a malformed Talos version is one, a registry that it can't reach another",
		},
		"a schematic it does not take": {
			register, 400, "yaml: line 2: field owner not allowed", who + "400 Bad Request: yaml: line 2: field owner not allowed", fault.Config, "",
		},
		"a broken store": {knows, 500, "", who + "500 Internal Server Error (asked 3 times)", fault.Failed, "the reason is in the factory's own log; a malformed Talos version is one, a registry that it can't reach another"},
		"an unknown extension": {
			iso, 400, `official extension "siderolabs/nope" is not available for Talos version v9.9.9`,
			who + `400 Bad Request: official extension "siderolabs/nope" is not available for Talos version v9.9.9`, fault.Config,
			"see `recast lock`: it names the extensions that there are for a Talos version",
		},
		"no image": {iso, 404, "not found", who + "404 Not Found: not found", fault.Failed, "the factory does not know Talos v9.9.9: http://127.0.0.1:8080/versions lists what it builds"},
		"customers only": {
			iso, 402, "enterprise", who + "402 Payment Required: enterprise", fault.Failed, "this is for customers of the Enterprise edition only",
		},
		"a very long answer": {
			iso, 400, strings.Repeat("x", 100_000), who + "400 Bad Request: " + strings.Repeat("x", maxErrorText), fault.Config, "",
		},
	}, func(t *testing.T, tc row) {
		err := tc.ask(serve(t, answer(tc.status, tc.body)), t.Context())
		must.Be(t, err != nil, "no error")
		must.Equal(t, "error", tc.want, err.Error())
		must.Equal(t, "kind", tc.kind, fault.KindOf(err))
		must.Equal(t, "hint", tc.hint, strings.Join(fault.Hints(err), "; "))
	})
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{URL: "https://factory.example", Transport: &http.Transport{
			DialContext: network.Memory().Dialer().DialContext,
		}})
		must.Do(t, err)
		_, err = c.Extensions(t.Context(), "v1.13.9")
		must.Hold(t, err != nil && strings.HasPrefix(err.Error(), "image factory https://factory.example: "),
			"error = %v", err)
		hint := "see whether images.factory in recast.yaml is right and reachable from here"
		must.Equal(t, "hints", []string{hint}, fault.Hints(err))
		must.Do(t, c.Close())
	})
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "factory.talos.dev", "ftp://factory.talos.dev", "https://", "http://a b/", "://"} {
		if _, err := New(Options{URL: url}); fault.KindOf(err) != fault.Config {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestInstallerRepository(t *testing.T) {
	t.Parallel()
	c := must.Get(New(Options{URL: "https://factory.talos.dev/"}))(t)
	var got []string
	for _, secure := range []bool{false, true} {
		got = append(got, c.InstallerRepository(images.ISORequest{SchematicID: "abc", Talos: "v1", Platform: "nocloud", Arch: "amd64", SecureBoot: secure}))
	}
	want := []string{"factory.talos.dev/nocloud-installer/abc", "factory.talos.dev/nocloud-installer-secureboot/abc"}
	must.Equal(t, "repositories", want, got)
	must.Do(t, c.Close())
}

func ExampleError() {
	fmt.Println(&Error{Factory: "https://factory.talos.dev", Status: 404, Message: "version not found"})
	// Output: image factory https://factory.talos.dev: 404 Not Found: version not found
}

// A factory's certificate is verified by the system's CAs, and by those of a file.
func TestCAFile(t *testing.T) {
	t.Parallel()
	requests := 0
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		answer(http.StatusOK, `["v1.13.9"]`)(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must.Do(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	trusts := must.Get(New(Options{URL: s.URL, CAFile: ca}))(t)
	defer trusts.Close()
	if versions, err := trusts.Versions(t.Context()); err != nil || len(versions) != 1 {
		t.Errorf("with its CA: %v, %v", versions, err)
	}
	other := must.Get(New(Options{URL: s.URL}))(t)
	defer other.Close()
	_, err := other.Versions(t.Context())
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); !ok || requests != 1 || strings.Contains(err.Error(), "times") {
		t.Errorf("an error that would repeat: %v after %d requests", err, requests)
	}
	hint := "if your own CA has signed it, name that CA's certificate, a PEM file, in images.caFile"
	must.Hold(t, fault.CodeOf(err) == fault.TLS && strings.Join(fault.Hints(err), "; ") == hint,
		"without: %v\ncode %s, hints %q", err, fault.CodeOf(err), fault.Hints(err))
	if _, err := New(Options{URL: s.URL, CAFile: "client.go"}); err == nil || fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), "client.go holds no PEM certificate") {
		t.Errorf("a file without one: %v", err)
	}
}

// Everything that a factory, or a proxy before it, says becomes one line without escape sequences.
func TestForeignTextIsOneLine(t *testing.T) {
	t.Parallel()
	const evil = "bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f"
	cases := map[string]string{"text": evil, "page": "<html><title>" + evil + "</title></html>"}
	eachInBubble(t, cases, func(t *testing.T, body string) {
		_, err := serve(t, answer(http.StatusBadRequest, body)).Versions(t.Context())
		must.Be(t, err != nil, "no error")
		if text := err.Error(); !strings.Contains(text, "bad") || !strings.Contains(text, "fake line") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") {
			t.Errorf("%q", text)
		}
	})
}

// eachInBubble is each with the time of a bubble.
func eachInBubble[T any](t *testing.T, cases map[string]T, test func(t *testing.T, tc T)) {
	t.Helper()
	must.Each(t, cases, func(t *testing.T, tc T) {
		synctest.Test(t, func(t *testing.T) { test(t, tc) })
	})
}

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
		must.Equal(t, "took", tc.took, time.Since(start))
		s.said(t, tc.notes, err, tc.err, tc.hint)
	})
}

// said compares what the user is told.
func (s *site) said(t *testing.T, notes []string, err error, text, hint string) {
	t.Helper()
	must.Equal(t, "notes", notes, s.notes)
	got := ""
	if err != nil {
		got = err.Error()
	}
	must.Equal(t, "error", text, got)
	must.Equal(t, "hint", hint, strings.Join(fault.Hints(err), "; "))
}

func TestCancelEndsRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := serve(t, answer(503, "")).Versions(ctx)
		must.Hold(t, errors.Is(err, context.DeadlineExceeded) && len(fault.Hints(err)) == 0,
			"error = %v, hints %v", err, fault.Hints(err))
	})
}

// TestSilentFactory: a factory that accepts a request and never answers.
func TestSilentFactory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		start := time.Now()
		_, err := c.Versions(t.Context())
		must.Contain(t, "error", fmt.Sprint(err), "no answer within 3m0s (asked 5 times)")
		if took, want := time.Since(start), attempts*answerWithin+15*time.Second; took != want {
			t.Errorf("took %s, want %s", took, want)
		}
	})
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
			got := retryAfter(&http.Response{Header: http.Header{"Retry-After": {text}}})
			must.Hold(t, got == want, "%q: %s, want %s", text, got, want)
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
		must.Equal(t, "error", tc.want, fmt.Sprint(err))
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
		must.Hold(t, err != nil && strings.Contains(err.Error(), tc.want) && !strings.Contains(err.Error(), "secret"),
			"error = %v, want %s", err, tc.want)
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
		must.Equal(t, "result", tc.want, must.Get(c.Broken(t.Context()))(t))
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
		must.Equal(t, "answer", tc.want, string(got))
		must.Contain(t, "error", fmt.Sprint(err), cmp.Or(tc.err, "<nil>"))
		must.Equal(t, "kind", tc.kind, fault.KindOf(err))
	})
}

var isoRequest = images.ISORequest{SchematicID: "abc", Talos: "v1.13.9", Platform: "nocloud", Arch: "amd64"}
