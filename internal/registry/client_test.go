package registry

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	bounds "github.com/recast-sh/recast/internal/transport"
	"github.com/recast-sh/recast/schematics"
)

// direct passes requests to a handler in the same process.
type direct struct{ http.Handler }

func (d direct) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	} else {
		req.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, req)
	resp := w.Result()
	resp.Request = req
	return resp, nil
}

const host = "127.0.0.1:5000"

func server() direct { return direct{ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))} }

func client(t *testing.T, transport http.RoundTripper) *Client {
	t.Helper()
	c := must.Get(New(Options{
		Extensions: host + "/siderolabs/extensions", Transport: transport, Keychain: authn.NewMultiKeychain(),
	}))(t)
	t.Cleanup(func() { must.Do(t, c.Close()) })
	return c
}

func push(t *testing.T, to http.RoundTripper, ref string, img v1.Image) {
	t.Helper()
	r := must.Get(name.ParseReference(ref))(t)
	must.Do(t, remote.Write(r, img, remote.WithTransport(to), remote.WithContext(t.Context())))
}

func pushList(t *testing.T, to http.RoundTripper, talos string, refs ...artefact.ListedExtension) {
	t.Helper()
	img := must.Get(artefact.ExtensionsList(refs))(t)
	push(t, to, host+"/siderolabs/extensions:"+talos, img)
}

func TestOfficial(t *testing.T) {
	t.Parallel()
	s := server()
	one, two := "sha256:"+strings.Repeat("1", 64), "sha256:"+strings.Repeat("2", 64)
	pushList(t, s, "v1.13.9",
		artefact.ListedExtension{Ref: "ghcr.io/siderolabs/qemu-guest-agent:11.0.2@" + one, Author: "Sidero", Description: "An agent\nof QEMU"},
		artefact.ListedExtension{Ref: "ghcr.io/siderolabs/iscsi-tools:v0.2.0@" + two},
	)
	got := must.Get(client(t, s).Official(t.Context(), "v1.13.9"))(t)
	want := []schematics.OfficialExtension{
		{Name: "siderolabs/iscsi-tools", Version: "v0.2.0", Ref: "ghcr.io/siderolabs/iscsi-tools", Digest: two},
		{
			Name: "siderolabs/qemu-guest-agent", Version: "11.0.2", Ref: "ghcr.io/siderolabs/qemu-guest-agent", Digest: one,
			Author: "Sidero", Description: "An agent\nof QEMU",
		},
	}
	must.Equal(t, "extensions", want, got)
}

func TestOfficialRefuses(t *testing.T) {
	t.Parallel()
	s := server()
	x := artefact.ListedExtension{Ref: "ghcr.io/siderolabs/zfs:1.0@sha256:" + strings.Repeat("1", 64)}
	for _, v := range []string{"v1.12.4", "v1.13.7", "v1.13.8", "v1.13.9", "v1.14.0-beta.1", "latest"} {
		pushList(t, s, v, x)
	}
	pushList(t, s, "v1.1.1")
	push(t, s, host+"/siderolabs/extensions:v1.1.2", empty.Image)
	locked := direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		http.Error(w, `{"errors":[{"code":"DENIED","message":"requested access to the resource is denied"}]}`, http.StatusForbidden)
	})}
	type row struct {
		to    http.RoundTripper
		talos string
		want  string
		kind  fault.Kind
		hint  string
	}
	must.Each(t, map[string]row{
		"no version": {s, "", `"" is not a Talos version`, fault.Config, ""},
		"no tag":     {s, "v1 13", `"v1 13" is not a Talos version`, fault.Config, ""},
		"unknown": {
			s, "v1.13.10", "Talos v1.13.10 is not known to 127.0.0.1:5000/siderolabs/extensions", fault.Config,
			"the nearest versions are v1.13.7, v1.13.8, v1.13.9",
		},
		"an empty list":  {s, "v1.1.1", "read 127.0.0.1:5000/siderolabs/extensions:v1.1.1: image-digests: the list is missing or empty", fault.Failed, ""},
		"an empty image": {s, "v1.1.2", "read 127.0.0.1:5000/siderolabs/extensions:v1.1.2: image-digests: the list is missing or empty", fault.Failed, ""},
		"denied": {
			locked, "v1.13.9", "registry 127.0.0.1:5000: GET https://127.0.0.1:5000/v2/siderolabs/extensions/manifests/v1.13.9: " +
				"DENIED: requested access to the resource is denied", fault.Failed,
			"log in with `docker login 127.0.0.1:5000`, or see whether the repository's name is right",
		},
		"unreachable": {
			refusing{},
			"v1.13.9", `registry 127.0.0.1:5000: Get "https://127.0.0.1:5000/v2/": connection refused; Get "http://127.0.0.1:5000/v2/": connection refused`, fault.Failed,
			"see whether 127.0.0.1:5000 is a registry that can be reached from here: images.extensions, images.mirror and images.factory in recast.yaml name registries",
		},
		"an empty registry": {server(), "v1.13.9", "Talos v1.13.9 is not known to 127.0.0.1:5000/siderolabs/extensions", fault.Config, ""},
	}, func(t *testing.T, tc row) {
		_, err := client(t, tc.to).Official(t.Context(), tc.talos)
		must.Be(t, err != nil, "no error")
		must.Equal(t, "error", tc.want, err.Error())
		must.Equal(t, "kind", tc.kind, fault.KindOf(err))
		must.Equal(t, "hint", tc.hint, strings.Join(fault.Hints(err), "; "))
	})
}

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

func TestParseOfficial(t *testing.T) {
	t.Parallel()
	d := "@sha256:" + strings.Repeat("1", 64)
	type row struct {
		digests, descriptions string
		want                  []string
		err                   string
	}
	must.Each(t, map[string]row{
		"comments and empty lines": {"# hello\n\nghcr.io/a/b:1" + d + "\r\n", "", []string{"a/b 1"}, ""},
		"the first of two counts":  {"ghcr.io/a/b:1" + d + "\nghcr.io/a/b:2" + d, "", []string{"a/b 1"}, ""},
		"sorted":                   {"ghcr.io/a/z:1" + d + "\nghcr.io/a/b:2" + d, "{}", []string{"a/b 2", "a/z 1"}, ""},
		"half a digest":            {"ghcr.io/a/b:1@sha256:11", "", nil, `image-digests: "ghcr.io/a/b:1@sha256:11" is not a tagged reference with a digest`},
		"no tag":                   {"ghcr.io/a/b" + d, "", nil, "is not a tagged reference with a digest"},
		"broken descriptions":      {"ghcr.io/a/b:1" + d, "[]", nil, "descriptions.yaml: "},
		"nothing":                  {"", "", nil, "image-digests: the list is missing or empty"},
	}, func(t *testing.T, tc row) {
		list, err := parseOfficial([]byte(tc.digests), []byte(tc.descriptions))
		var got []string
		for _, x := range list {
			got = append(got, x.Name+" "+x.Version)
		}
		must.Equal(t, "extensions", tc.want, got)
		must.Contain(t, "error", fmt.Sprint(err), cmp.Or(tc.err, "<nil>"))
	})
}

func TestDigest(t *testing.T) {
	t.Parallel()
	s := server()
	c := client(t, s)
	idx := must.Get(random.Index(64, 1, 2))(t)
	tag := must.Get(name.NewTag(host + "/metal-installer/abc:v1.13.9"))(t)
	must.Do(t, remote.WriteIndex(tag, idx, remote.WithTransport(s), remote.WithContext(t.Context())))
	want := must.Get(idx.Digest())(t)
	repository := host + "/metal-installer/abc"
	for ref, found := range map[string]bool{
		repository + ":v1.13.9":                                true,
		repository + "@" + want.String():                       true,
		repository + ":v1.13.8":                                false,
		repository + "@sha256:" + strings.Repeat("0", 64):      false,
		host + "/metal-installer/other@" + want.String():       false,
		host + "/metal-installer/other:v1.13.9":                false,
		host + "/metal-installer/abc:v1.13.9@" + want.String(): true,
	} {
		got, ok, err := c.Digest(t.Context(), ref)
		must.Hold(t, err == nil, "%s: %v", ref, err)
		must.Hold(t, ok == found && (!found || got == want.String()), "%s: %q %t, want %q %t", ref, got, ok, want, found)
	}
}

// TestDigestIsComputed: a registry that sends other bytes than requested is not trusted.
func TestDigestIsComputed(t *testing.T) {
	t.Parallel()
	asked := "sha256:" + strings.Repeat("1", 64)
	liar := direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			w.Header().Set("Docker-Content-Digest", asked)
			w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
			_, _ = io.Copy(w, bytes.NewReader([]byte(`{"schemaVersion":2,"manifests":[]}`)))
		}
	})}
	got, found, err := client(t, liar).Digest(t.Context(), host+"/a/b@"+asked)
	must.Hold(t, err != nil && !found, "%q %t %v", got, found, err)
}

func TestBadReferences(t *testing.T) {
	t.Parallel()
	tag, digest := host+"/a/b:v1", host+"/a/b@sha256:"+strings.Repeat("0", 64)
	push := images.ArchivePush{File: "file", Repository: host + "/c", Arch: "amd64", Base: tag}
	c := client(t, server())
	second := func(_ any, err error) error { return err }
	third := func(_, _ any, err error) error { return err }
	ctx := t.Context()
	for title, err := range map[string]error{
		"a client of no repository":   second(New(Options{Extensions: "GHCR.io/UPPER"})),
		"no reference":                third(c.Digest(ctx, "a b")),
		"signatures of a tag":         second(c.Signatures(ctx, tag)),
		"copy of a tag":               c.Copy(ctx, tag, host+"/c", nil),
		"copy to no repository":       c.Copy(ctx, digest, "A B", nil),
		"head of no tag":              third(c.Head(ctx, "a b")),
		"tag of a tag":                c.Tag(ctx, tag, host+"/a/b:v2"),
		"tag of no place":             c.Tag(ctx, digest, "a b"),
		"push upon a tag":             second(c.PushArchive(ctx, push)),
		"what is beside a tag":        second(c.Attached(ctx, tag)),
		"a file of what beside a tag": second(c.AttachedFile(ctx, tag, schematics.BootFile{})),
		"a layout of a tag":           c.SaveLayout(ctx, tag, "amd64", t.TempDir()),
		"a file to be beside a tag":   c.Attach(ctx, tag, "file", images.BootISO, schematics.BootFile{}, nil),
		"built upon, of a tag":        c.BuiltUpon(ctx, tag, digest, "amd64"),
	} {
		must.Equal(t, title, fault.Config, fault.KindOf(err))
	}
}

func TestCloseReachesTransport(t *testing.T) {
	t.Parallel()
	idle := &idleCounter{RoundTripper: server()}
	c := must.Get(New(Options{Transport: idle}))(t)
	err := c.Close()
	must.Hold(t, err == nil && idle.closed == 1, "closed %d times: %v", idle.closed, err)
}

type idleCounter struct {
	http.RoundTripper
	closed int
}

func (i *idleCounter) CloseIdleConnections() { i.closed++ }

func TestNearest(t *testing.T) {
	t.Parallel()
	tags := []string{"v1.9.0", "v1.10.0", "v1.12.4", "v1.13.8", "v1.13.9", "v1.13.9", "v1.14.0-beta.1", "latest", "v1.13.09", "sha256-abc.sig"}
	for unknown, want := range map[string][]string{
		"v1.13.10": {"v1.12.4", "v1.13.8", "v1.13.9"},
		"v1.12.9":  {"v1.10.0", "v1.12.4", "v1.13.8"},
		"v1.0.0":   {"v1.9.0", "v1.10.0", "v1.12.4"},
		"1.13.9":   {"v1.12.4", "v1.13.8", "v1.13.9"},
		"v2.0.0":   {"v1.12.4", "v1.13.8", "v1.13.9"},
	} {
		must.Equal(t, "nearest to "+unknown, want, nearest(unknown, tags, 3))
	}
	must.Equal(t, "of one", []string{"v1.2.3"}, nearest("v1.13.9", []string{"v1.2.3"}, 3))
	got := nearest("v1.13.9", nil, 3)
	must.Hold(t, len(got) == 0, "of none: %v", got)
}

// A registry's certificate is verified by the system's CAs, and by those of a file.
func TestCAFile(t *testing.T) {
	t.Parallel()
	quiet := log.New(io.Discard, "", 0)
	s := httptest.NewUnstartedServer(ggcr.New(ggcr.Logger(quiet)))
	s.Config.ErrorLog = quiet
	s.StartTLS()
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must.Do(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	ref := strings.TrimPrefix(s.URL, "https://") + "/acme/talos:v1.13.9"
	trusts := must.Get(New(Options{CAFile: ca, Keychain: authn.NewMultiKeychain()}))(t)
	defer trusts.Close()
	if _, found, err := trusts.Digest(t.Context(), ref); found || err != nil {
		t.Errorf("with its CA: found %t, %v", found, err)
	}
	other := must.Get(New(Options{Keychain: authn.NewMultiKeychain()}))(t)
	defer other.Close()
	_, _, err := other.Digest(t.Context(), ref)
	hint := "if your own CA has signed it, name that CA's certificate, a PEM file, in images.caFile"
	must.Hold(t, fault.CodeOf(err) == fault.TLS && strings.Join(fault.Hints(err), "; ") == hint,
		"without: %v\ncode %s, hints %q", err, fault.CodeOf(err), fault.Hints(err))
	if _, err := New(Options{CAFile: "client.go"}); err == nil || fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), "client.go holds no PEM certificate") {
		t.Errorf("a file without one: %v", err)
	}
}

// Everything that a registry says becomes one line without escape sequences.
// TestNothingInTheClear: a registry without TLS, or one that leads to a server without TLS, gets no request, and so no login.
func TestNothingInTheClear(t *testing.T) {
	const private = "10.1.2.3:5000"
	for name, tc := range map[string]struct {
		ref      string
		insecure []string
		answers  http.HandlerFunc // of the server that has TLS; nil: there is none
		clear    bool             // a login arrives without TLS
	}{
		"a private address":     {private + "/acme/frr:1", nil, nil, false},
		"a local name":          {"registry.localhost/acme/frr:1", nil, nil, false},
		"named":                 {private + "/acme/frr:1", []string{private}, nil, true},
		"a public name, named":  {"registry.example:5000/acme/frr:1", []string{"registry.example:5000"}, nil, true},
		"another one is named":  {private + "/acme/frr:1", []string{"10.1.2.4:5000"}, nil, false},
		"this machine":          {"127.0.0.1:5000/acme/frr:1", nil, nil, true},
		"tokens without TLS":    {"registry.example/acme/frr:1", nil, realm("http://10.1.2.3/token"), false},
		"redirects without TLS": {"registry.example/acme/frr:1", nil, elsewhere("http://10.1.2.3/"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests, logins atomic.Int64
			clear := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				if r.Header.Get("Authorization") != "" {
					logins.Add(1)
				}
				w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
				w.WriteHeader(http.StatusUnauthorized)
			}))
			defer clear.Close()
			at := clear
			if tc.answers != nil {
				at = httptest.NewTLSServer(tc.answers)
				defer at.Close()
			}
			transport := &http.Transport{
				TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the names are not the server's
				DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
					to := at
					if tc.answers != nil && strings.HasPrefix(addr, "10.") {
						to = clear
					}
					return new(net.Dialer).DialContext(ctx, network, to.Listener.Addr().String())
				},
			}
			c := must.Get(New(Options{Transport: transport, Keychain: keychain{}, Insecure: tc.insecure}))(t)
			_, _, err := c.Digest(t.Context(), tc.ref)
			must.Hold(t, err != nil, "there is such an image")
			must.Equal(t, "a login in the clear", tc.clear, logins.Load() > 0)
			must.Equal(t, "a request in the clear", tc.clear, requests.Load() > 0)
			if !tc.clear && !strings.Contains(err.Error(), "invalid realm") { // go-containerregistry's own words
				must.Contain(t, "hint", strings.Join(fault.Hints(err), "\n"), "images.insecure")
			}
		})
	}
}

// keychain has a login for every registry.
type keychain struct{}

func (keychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return &authn.Basic{Username: "admin", Password: "hunter22"}, nil
}

func realm(at string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=%q", at, "registry"))
		w.WriteHeader(http.StatusUnauthorized)
	}
}

func elsewhere(at string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, at, http.StatusTemporaryRedirect)
	}
}

func TestForeignTextIsOneLine(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"its words": `{"errors":[{"code":"DENIED","message":"bad\u001b[31m\u001b]0;title\u0007\r\nfake line: \u202e\u2028\u007f"}]}`,
		"no JSON":   "bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f",
	} {
		for _, status := range []int{http.StatusForbidden, http.StatusBadRequest} {
			refuses := direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v2/" {
					w.WriteHeader(status)
					_, _ = io.WriteString(w, body)
				}
			})}
			_, _, err := client(t, refuses).Digest(t.Context(), host+"/a/b:v1")
			must.Be(t, err != nil, "no error")
			if text := err.Error(); !strings.Contains(text, "bad") || !strings.Contains(text, "fake line") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") {
				t.Errorf("%s, %d: %q", name, status, text)
			}
		}
	}
}

// line is the server side of a connection: each answer in turn.
type line struct {
	answers []answer
	asked   []string // the requested ranges
}

// answer is the answer to one request. Bodies end with their request's context.
type answer struct {
	status  int
	header  http.Header
	sends   string        // this much, and then:
	breaks  error         // nil: no more bytes come
	whole   bool          // what is sent is complete
	size    int64         // as announced
	silence time.Duration // before the answer
}

func (l *line) RoundTrip(req *http.Request) (*http.Response, error) {
	a := l.answers[0]
	l.answers = l.answers[1:]
	l.asked = append(l.asked, req.Header.Get("Range"))
	if req.Body != nil {
		defer req.Body.Close()
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
	}
	select {
	case <-time.After(a.silence):
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
	return &http.Response{
		Status: fmt.Sprint(a.status), StatusCode: a.status, Header: a.header, ContentLength: a.size, Request: req,
		Body: &lineBody{ctx: req.Context(), rest: a.sends, answer: a},
	}, nil
}

type lineBody struct {
	ctx  context.Context
	rest string
	answer
}

func (b *lineBody) Read(p []byte) (int, error) {
	if n := copy(p, b.rest); n > 0 {
		b.rest = b.rest[n:]
		return n, nil
	}
	switch {
	case b.whole:
		return 0, io.EOF
	case b.breaks != nil:
		return 0, b.breaks
	}
	<-b.ctx.Done()
	return 0, context.Canceled // as http.Transport does
}

func (b *lineBody) Close() error { return nil }

var errReset = errors.New("connection reset by peer")

func part(status int, from, to, of int64, a answer) answer {
	a.status, a.size = status, to-from+1
	a.header = http.Header{"Content-Range": {fmt.Sprintf("bytes %d-%d/%d", from, to, of)}}
	return a
}

func TestDownloadsGoOn(t *testing.T) {
	t.Parallel()
	stalls := "no data came for 1m0s"
	broken := func(n int) (list []answer) {
		for range n {
			list = append(list, part(206, 3, 9, 10, answer{breaks: errReset}))
		}
		return list
	}
	type row struct {
		path    string
		answers []answer
		want    string
		asked   []string
		err     string
		took    time.Duration
	}
	eachInBubble(t, map[string]row{
		"whole": {answers: []answer{{status: 200, size: 10, sends: "0123456789", whole: true}}, want: "0123456789", asked: []string{""}},
		"it stalls": {
			answers: []answer{{status: 200, size: 10, sends: "012"}, part(206, 3, 9, 10, answer{sends: "3456789", whole: true})},
			want:    "0123456789", asked: []string{"", "bytes=3-9"}, took: limits.Stall + time.Second,
		},
		"it breaks off twice": {
			answers: []answer{
				{status: 200, size: 10, sends: "012", breaks: io.ErrUnexpectedEOF},
				part(206, 3, 9, 10, answer{sends: "34", breaks: errReset}), part(206, 5, 9, 10, answer{sends: "56789", whole: true}),
			},
			want: "0123456789", asked: []string{"", "bytes=3-9", "bytes=5-9"}, took: 3 * time.Second,
		},
		"a busy server": {
			answers: []answer{{status: 200, size: 10, sends: "012", breaks: errReset}, {status: 503}, part(206, 3, 9, 10, answer{sends: "3456789", whole: true})},
			want:    "0123456789", asked: []string{"", "bytes=3-9", "bytes=3-9"}, took: 3 * time.Second,
		},
		"a server that knows no ranges": {
			answers: []answer{{status: 200, size: 10, sends: "012", breaks: errReset}, {status: 200, size: 10, sends: "0123456789", whole: true}},
			want:    "012", asked: []string{"", "bytes=3-9"}, took: time.Second,
			err: `connection reset by peer; asked for the rest: the registry answers "200" to the request for the rest, after 3 of 10 bytes`,
		},
		"another range": {
			answers: []answer{{status: 200, size: 10, sends: "012", breaks: errReset}, part(206, 2, 9, 10, answer{sends: "23456789", whole: true})},
			want:    "012", asked: []string{"", "bytes=3-9"}, took: time.Second,
			err: `connection reset by peer; asked for the rest: the registry answers "206" to the request for the rest, after 3 of 10 bytes`,
		},
		"for ever": {
			answers: append([]answer{{status: 200, size: 10, sends: "012", breaks: errReset}}, broken(limits.Resumes)...),
			want:    "012", asked: append([]string{""}, strings.Split(strings.Repeat("bytes=3-9 ", limits.Resumes), " ")[:limits.Resumes]...),
			took: 63 * time.Second, err: "connection reset by peer; asked for the rest: it broke off too often",
		},
		"of unknown size": {answers: []answer{{status: 200, size: -1, sends: "012"}}, want: "012", asked: []string{""}, took: limits.Stall, err: stalls},
		"a manifest":      {path: "/v2/a/manifests/v1", answers: []answer{{status: 200, size: 10, sends: "012"}}, want: "012", asked: []string{""}, took: limits.Stall, err: stalls},
		"no answer": {
			answers: []answer{{status: 200, silence: time.Hour}}, asked: []string{""}, took: limits.Answer, err: "no answer for 25m0s",
		},
	}, func(t *testing.T, tc row) {
		l := &line{answers: tc.answers}
		if tc.path == "" {
			tc.path = "/v2/a/blobs/sha256:0"
		}
		begun := time.Now()
		got, err := fetch(t.Context(), t, l, tc.path)
		must.Equal(t, "body", tc.want, got)
		must.Equal(t, "error", cmp.Or(tc.err, "<nil>"), fmt.Sprint(err))
		must.Equal(t, "ranges", tc.asked, l.asked)
		must.Equal(t, "it", tc.took, time.Since(begun))
	})
}

func fetch(ctx context.Context, t *testing.T, from http.RoundTripper, path string) (string, error) {
	t.Helper()
	req := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+path, nil))(t)
	resp, err := limited(from).RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestDownloadIsCancelled(t *testing.T) {
	t.Parallel()
	cases := map[string]time.Duration{"while it stalls": time.Second, "while it pauses": limits.Stall + time.Second/2}
	eachInBubble(t, cases, func(t *testing.T, at time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), at)
		defer cancel()
		begun := time.Now()
		l := &line{answers: []answer{{status: 200, size: 10, sends: "012"}}}
		if _, err := fetch(ctx, t, l, "/v2/a/blobs/sha256:0"); err == nil {
			t.Error("no error")
		}
		must.Equal(t, "it took", at, time.Since(begun))
	})
}

// slow is a body that is read slowly.
type slow struct {
	io.Reader
	each time.Duration
}

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(s.each)
	return s.Reader.Read(p)
}

// stuck reads a part of a request's body and then stops.
type stuck struct{ takes int64 }

func (s stuck) RoundTrip(req *http.Request) (*http.Response, error) {
	defer req.Body.Close()
	if _, err := io.CopyN(io.Discard, req.Body, s.takes); err != nil {
		return nil, err
	}
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func TestUploads(t *testing.T) {
	t.Parallel()
	type row struct {
		to        http.RoundTripper
		each      time.Duration // our side's time for each byte
		err       string
		temporary bool
		took      time.Duration
	}
	eachInBubble(t, map[string]row{
		"it stalls":                 {to: stuck{5}, err: "the registry accepted no data for 1m0s", temporary: true, took: limits.Stall},
		"our side is slow":          {to: &line{answers: []answer{{status: 202}}}, each: 2 * limits.Stall, took: 22 * limits.Stall},
		"the answer takes its time": {to: &line{answers: []answer{{status: 202, silence: limits.Answer - 1}}}, took: limits.Answer - 1},
	}, func(t *testing.T, tc row) {
		body := io.NopCloser(slow{Reader: oneByte{strings.NewReader("0123456789")}, each: tc.each})
		req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://r/v2/a/blobs/uploads/1", body))(t)
		begun := time.Now()
		resp, err := limited(tc.to).RoundTrip(req)
		if err == nil {
			err = resp.Body.Close()
		}
		must.Equal(t, "error", cmp.Or(tc.err, "<nil>"), fmt.Sprint(err))
		if stalled, ok := errors.AsType[*bounds.Stalled](err); ok && (stalled.Temporary() != tc.temporary || !stalled.Timeout()) {
			t.Errorf("temporary = %t", stalled.Temporary())
		}
		must.Equal(t, "it", tc.took, time.Since(begun))
	})
}

type oneByte struct{ io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.Reader.Read(p[:min(1, len(p))]) }

// TestCutBlobIsReadToItsEnd: over a real connection, and its digest is still checked.
func TestCutBlobIsReadToItsEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("long: it waits for seconds")
	}
	t.Parallel()
	c := newCopier(t)
	content := strings.Repeat("0123456789abcdef", 1<<12)
	sum := sha256.Sum256([]byte(content))
	layer := tarOf(t, "a="+content)
	push(t, http.DefaultTransport, c.from.host+"/acme/frr:1", imageOf(t, "amd64", layer))
	cut := 0
	c.from.cut = func(r *http.Request) int64 {
		if strings.Contains(r.URL.Path, must.Get(layer.Digest())(t).Hex) && cut < 2 {
			cut++
			return 10_000
		}
		return -1
	}
	archive := must.Get(c.Extract(t.Context(), c.from.host+"/acme/frr:1", "amd64"))(t)
	files, err := filesOf(t, archive)
	must.Do(t, errors.Join(err, archive.Close()))
	got := sha256.Sum256([]byte(files["a"]))
	must.Hold(t, cut == 2 && hex.EncodeToString(got[:]) == hex.EncodeToString(sum[:]),
		"after %d cuts: %x, want %x", cut, got, sum)
}

// over lets a test talk HTTP to a handler in a bubble.
func over(t *testing.T, h http.Handler, test func(http.RoundTripper)) {
	t.Helper()
	net := network.Memory()
	l := must.Get(net.Listen(host))(t)
	server := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.Serve(l) }() // returns when the server is closed
	transport := &http.Transport{DialContext: net.Dialer().DialContext}
	test(transport)
	transport.CloseIdleConnections()
	must.Do(t, server.Close())
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
				must.Hold(t, err == nil && got == string(content) && ranges == 1, "%d bytes, %d ranges, %v", len(got), ranges, err)
				must.Equal(t, "it took", limits.Stall+limits.Pause, time.Since(begun))
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
				req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://"+host+"/v2/a/blobs/uploads/1", bytes.NewReader(make([]byte, 10<<20))))(t)
				begun := time.Now()
				resp, err := limited(transport).RoundTrip(req)
				if err == nil {
					t.Fatal(resp.Body.Close())
				}
				if stalled, ok := errors.AsType[*bounds.Stalled](err); !ok || !stalled.Temporary() {
					t.Errorf("error is %v", err)
				}
				must.Equal(t, "it took", limits.Stall, time.Since(begun))
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
	c := must.Get(New(Options{}))(t)
	for registry, want := range map[string]string{"ghcr.io": "octocat", "registry.example": ""} {
		auth := must.Get(c.keychain.Resolve(must.Get(name.NewRegistry(registry))(t)))(t)
		must.Equal(t, registry, want, must.Get(authn.Authorization(t.Context(), auth))(t).Username)
	}
}

const maxPeakMiB = 128

// BenchmarkCopy copies an image of 300 MiB between two registries that keep blobs in
// files, all in one process, and fails if that takes too much memory.
func BenchmarkCopy(b *testing.B) {
	from, digest := largeImage(b, 3, 100<<20)
	for b.Loop() {
		to := serveDisk(b, b.TempDir())
		c := must.Get(New(Options{Keychain: authn.NewMultiKeychain()}))(b)
		peak := heap.Peak(b.Context(), func() {
			must.Do(b, c.Copy(b.Context(), from+"/installer@"+digest, to+"/talos", func(int64, int64) {}))
		})
		must.Do(b, c.Close())
		b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
		must.Be(b, peak <= maxPeakMiB<<20, "the heap has grown to %d MiB, %d are allowed", peak>>20, maxPeakMiB)
	}
}

// largeImage is an image of that many layers in its own registry.
func largeImage(b *testing.B, layers int, layerBytes int64) (host, digest string) {
	b.Helper()
	dir := b.TempDir()
	host = serveDisk(b, dir)
	random := rand.NewChaCha8([32]byte{})
	blob := func(content io.Reader, mediaType types.MediaType) v1.Descriptor {
		sum := sha256.New()
		file := filepath.Join(b.TempDir(), "blob")
		out := must.Get(os.Create(file))(b)
		size := must.Get(io.Copy(io.MultiWriter(out, sum), content))(b)
		d := v1.Descriptor{MediaType: mediaType, Size: size, Digest: v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sum.Sum(nil))}}
		must.Do(b, os.MkdirAll(filepath.Join(dir, "sha256"), 0o700))
		must.Do(b, os.Rename(file, filepath.Join(dir, "sha256", d.Digest.Hex)))
		return d
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: blob(strings.NewReader("{}"), types.OCIConfigJSON)}
	for range layers {
		m.Layers = append(m.Layers, blob(io.LimitReader(random, layerBytes), types.OCILayer))
	}
	raw := must.Get(json.Marshal(m))(b)
	digest = fmt.Sprintf("sha256:%x", sha256.Sum256(raw))
	req := must.Get(http.NewRequestWithContext(b.Context(), http.MethodPut, "http://"+host+"/v2/installer/manifests/"+digest, bytes.NewReader(raw)))(b)
	req.Header.Set("Content-Type", string(m.MediaType))
	resp := must.Get(http.DefaultClient.Do(req))(b)
	defer resp.Body.Close()
	must.Be(b, resp.StatusCode == http.StatusCreated, "%v", resp.Status)
	return host, digest
}

// serveDisk serves a registry whose blobs and uploads are files:
// go-containerregistry's own keeps uploads in memory until they are complete.
func serveDisk(b *testing.B, dir string) (host string) {
	b.Helper()
	store := ggcr.New(ggcr.WithBlobHandler(ggcr.NewDiskBlobHandler(dir)), ggcr.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		upload := filepath.Join(dir, "upload-"+filepath.Base(r.URL.Path))
		switch {
		case r.Method == http.MethodPatch:
			if err := receive(upload, r.Body); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Location", r.URL.Path)
			w.WriteHeader(http.StatusAccepted)
		case r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/uploads/"):
			hash, err := v1.NewHash(r.URL.Query().Get("digest"))
			if err == nil {
				err = commit(upload, dir, hash)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.WriteHeader(http.StatusCreated)
		default:
			store.ServeHTTP(w, r)
		}
	}))
	b.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func receive(file string, body io.Reader) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(f, body)
	return err
}

func commit(file, dir string, want v1.Hash) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	got, _, err := v1.SHA256(f)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("it is %s, not %s", got, want)
	}
	if err := os.MkdirAll(filepath.Join(dir, want.Algorithm), 0o700); err != nil {
		return err
	}
	return os.Rename(file, filepath.Join(dir, want.Algorithm, want.Hex))
}

// BenchmarkArchives pushes an installer of 300 MiB from a tarball, and an ISO of 300
// MiB beside it, and fails if that takes too much memory.
func BenchmarkArchives(b *testing.B) {
	dir, host := b.TempDir(), serveDisk(b, b.TempDir())
	base := must.Get(random.Image(512, 1))(b)
	config := must.Get(base.ConfigFile())(b).DeepCopy()
	config.Architecture, config.OS = "amd64", "linux"
	base = must.Get(mutate.ConfigFile(base, config))(b)
	ref := must.Get(name.NewRepository(host + "/installer-base"))(b).Digest(must.Get(base.Digest())(b).String())
	must.Do(b, remote.Write(ref, base))
	layer, _ := fileOfNoise(b, filepath.Join(dir, "layer.tar.gz"), true)
	img := must.Get(mutate.AppendLayers(base, must.Get(tarball.LayerFromFile(layer))(b)))(b)
	archive := filepath.Join(dir, "installer-amd64.tar")
	must.Do(b, tarball.WriteToFile(archive, ref, img))
	file, iso := fileOfNoise(b, filepath.Join(dir, "nocloud-amd64.iso"), false)
	for b.Loop() {
		c := must.Get(New(Options{Keychain: authn.NewMultiKeychain()}))(b)
		to := serveDisk(b, b.TempDir())
		peak := heap.Peak(b.Context(), func() {
			digest, err := c.PushArchive(b.Context(), images.ArchivePush{File: archive, Repository: to + "/talos", Arch: "amd64", Base: ref.String()})
			if err == nil {
				err = c.Attach(b.Context(), to+"/talos@"+digest, file, images.BootISO, iso, nil)
			}
			must.Do(b, err)
		})
		must.Do(b, c.Close())
		b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
		must.Be(b, peak <= maxPeakMiB<<20, "the heap has grown to %d MiB, %d are allowed", peak>>20, maxPeakMiB)
	}
}

// fileOfNoise writes 300 MiB: raw, or packed as the layer of an installer.
func fileOfNoise(b *testing.B, path string, packed bool) (string, schematics.BootFile) {
	b.Helper()
	const size = 300 << 20
	f := must.Get(os.Create(path))(b)
	defer f.Close()
	sum := sha256.New()
	to := io.MultiWriter(f, sum)
	noise := io.LimitReader(rand.NewChaCha8([32]byte{1}), size)
	if packed {
		z := must.Get(gzip.NewWriterLevel(to, gzip.NoCompression))(b)
		t := tar.NewWriter(z)
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "usr/install/amd64/vmlinuz.efi", Mode: 0o644, Size: size})
		must.Get(io.Copy(t, noise))(b)
		must.Do(b, errors.Join(err, t.Close(), z.Close()))
	} else {
		must.Get(io.Copy(to, noise))(b)
	}
	return path, schematics.BootFile{Name: filepath.Base(path), SHA256: hex.EncodeToString(sum.Sum(nil)), SizeBytes: size}
}
