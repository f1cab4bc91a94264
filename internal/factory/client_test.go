package factory

import (
	"context"
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

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/schematics"
	"github.com/siderolabs/image-factory/pkg/schematic"
)

const addr = "127.0.0.1:8080"

// serve runs a handler on an in-memory network of this bubble and returns a client to it.
func serve(t *testing.T, h http.Handler) *Client {
	t.Helper()
	n := network.Memory()
	noError(t, listen(t, n, addr, h))
	c := must(New(Options{URL: "http://" + addr, Transport: &http.Transport{DialContext: n.Dialer().DialContext}}))(t)
	t.Cleanup(func() { noError(t, c.Close()) })
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
		got := must(c.Extensions(t.Context(), "v1.13.9"))(t)
		want := []schematics.OfficialExtension{
			{Name: "siderolabs/zfs", Version: "2.3-v1", Ref: "127.0.0.1:5000/siderolabs/zfs", Digest: "sha256:11", Author: "A", Description: "D"},
			{Name: "siderolabs/odd", Ref: "127.0.0.1:5000/siderolabs/odd", Digest: "sha256:22"},
		}
		same(t, "extensions", want, got)
		versions, err := c.Versions(t.Context())
		if diff := cmp.Diff([]string{"v1.13.8", "v1.13.9"}, versions); err != nil || diff != "" {
			t.Errorf("versions: %v (-want +got):\n%s", err, diff)
		}
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
		s := must(schematics.Parse("s.yaml", []byte("customization: {extraKernelArgs: [\"yes\", \"1.10\"], systemExtensions: {officialExtensions: [siderolabs/zfs]}}\n")))(t)
		if known, err := c.Knows(t.Context(), s.ID()); known || err != nil {
			t.Errorf("before: known %t, %v", known, err)
		}
		if id, stored, err := c.Register(t.Context(), s.Canonical()); id != s.ID() || stored != s.Canonical() || err != nil {
			t.Errorf("ID %s, want %s; %v; stored:\n%s", id, s.ID(), err, stored)
		}
		if known, err := c.Knows(t.Context(), s.ID()); !known || err != nil {
			t.Errorf("after: known %t, %v", known, err)
		}
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
	iso := func(c *Client, ctx context.Context) error {
		body, _, err := c.ISO(ctx, images.ISORequest{SchematicID: "abc", Talos: "v9.9.9", Platform: "nocloud", Arch: "amd64"}, nil)
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
		if err == nil {
			t.Fatal("no error")
		}
		if got := err.Error(); got != tc.want {
			t.Errorf("error\n got %s\nwant %s", got, tc.want)
		}
		if kind := fault.KindOf(err); kind != tc.kind {
			t.Errorf("kind = %v, want %v", kind, tc.kind)
		}
		if got := strings.Join(fault.Hints(err), "; "); got != tc.hint {
			t.Errorf("hint\n got %s\nwant %s", got, tc.hint)
		}
	})
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{URL: "https://factory.example", Transport: &http.Transport{
			DialContext: network.Memory().Dialer().DialContext,
		}})
		noError(t, err)
		_, err = c.Extensions(t.Context(), "v1.13.9")
		if err == nil || !strings.HasPrefix(err.Error(), "image factory https://factory.example: ") {
			t.Errorf("error = %v", err)
		}
		hint := "see whether images.factory in recast.yaml is right and reachable from here"
		same(t, "hints", []string{hint}, fault.Hints(err))
		noError(t, c.Close())
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
	c := must(New(Options{URL: "https://factory.talos.dev/"}))(t)
	var got []string
	for _, secure := range []bool{false, true} {
		got = append(got, c.InstallerRepository(images.ISORequest{SchematicID: "abc", Talos: "v1", Platform: "nocloud", Arch: "amd64", SecureBoot: secure}))
	}
	want := []string{"factory.talos.dev/nocloud-installer/abc", "factory.talos.dev/nocloud-installer-secureboot/abc"}
	same(t, "repositories", want, got)
	noError(t, c.Close())
}

func ExampleError() {
	fmt.Println(&Error{Factory: "https://factory.talos.dev", Status: 404, Message: "version not found"})
	// Output: image factory https://factory.talos.dev: 404 Not Found: version not found
}

// A factory's certificate is verified by the system's CAs, and by those of a file.
func TestCAFile(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(answer(http.StatusOK, `["v1.13.9"]`))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	noError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	trusts := must(New(Options{URL: s.URL, CAFile: ca}))(t)
	defer trusts.Close()
	if versions, err := trusts.Versions(t.Context()); err != nil || len(versions) != 1 {
		t.Errorf("with its CA: %v, %v", versions, err)
	}
	other, err := New(Options{URL: s.URL})
	noError(t, err)
	defer other.Close()
	_, err = other.Versions(t.Context())
	hint := "if your own CA has signed it, name that CA's certificate, a PEM file, in images.caFile"
	if fault.CodeOf(err) != fault.TLS || strings.Join(fault.Hints(err), "; ") != hint {
		t.Errorf("without: %v\ncode %s, hints %q", err, fault.CodeOf(err), fault.Hints(err))
	}
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
		if err == nil {
			t.Fatal("no error")
		}
		if text := err.Error(); !strings.Contains(text, "bad") || !strings.Contains(text, "fake line") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") {
			t.Errorf("%q", text)
		}
	})
}

// must returns v, or ends the test with the error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		noError(t, err)
		return v
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares what came with what is wanted.
func same(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// each runs a test for every case, all at once.
func each[T any](t *testing.T, cases map[string]T, test func(t *testing.T, tc T)) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, tc)
		})
	}
}

// eachInBubble is each with the time of a bubble.
func eachInBubble[T any](t *testing.T, cases map[string]T, test func(t *testing.T, tc T)) {
	t.Helper()
	each(t, cases, func(t *testing.T, tc T) {
		synctest.Test(t, func(t *testing.T) { test(t, tc) })
	})
}
