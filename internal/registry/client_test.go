package registry

import (
	"bytes"
	"cmp"
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

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
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
		if err == nil {
			t.Fatal("no error")
		}
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
		if err != nil {
			t.Errorf("%s: %v", ref, err)
		}
		if ok != found || found && got != want.String() {
			t.Errorf("%s: %q %t, want %q %t", ref, got, ok, want, found)
		}
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
	if err == nil || found {
		t.Errorf("%q %t %v", got, found, err)
	}
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
	if err := c.Close(); err != nil || idle.closed != 1 {
		t.Errorf("closed %d times: %v", idle.closed, err)
	}
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
	if got := nearest("v1.13.9", nil, 3); len(got) != 0 {
		t.Errorf("of none: %v", got)
	}
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
	if fault.CodeOf(err) != fault.TLS || strings.Join(fault.Hints(err), "; ") != hint {
		t.Errorf("without: %v\ncode %s, hints %q", err, fault.CodeOf(err), fault.Hints(err))
	}
	if _, err := New(Options{CAFile: "client.go"}); err == nil || fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), "client.go holds no PEM certificate") {
		t.Errorf("a file without one: %v", err)
	}
}

// Everything that a registry says becomes one line without escape sequences.
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
			if err == nil {
				t.Fatal("no error")
			}
			if text := err.Error(); !strings.Contains(text, "bad") || !strings.Contains(text, "fake line") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") {
				t.Errorf("%s, %d: %q", name, status, text)
			}
		}
	}
}
