package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
)

// tarOf is an uncompressed layer of files and directories, whose names end with a slash.
func tarOf(t *testing.T, files ...string) v1.Layer {
	t.Helper()
	var b strings.Builder
	w := tar.NewWriter(&b)
	for _, f := range files {
		file, content, _ := strings.Cut(f, "=")
		h := &tar.Header{Name: file, Size: int64(len(content)), Mode: 0o644, Typeflag: tar.TypeReg}
		noError(t, w.WriteHeader(h))
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	noError(t, w.Close())
	return static.NewLayer([]byte(b.String()), types.OCIUncompressedLayer)
}

func imageOf(t *testing.T, arch string, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := must(mutate.AppendLayers(empty.Image, layers...))(t)
	config := must(img.ConfigFile())(t).DeepCopy()
	config.Architecture, config.OS = arch, "linux"
	return must(mutate.ConfigFile(img, config))(t)
}

// pushExtension pushes an index of two architectures, with an attestation beside
// them, and returns a reference to it by digest.
func pushExtension(t *testing.T, to http.RoundTripper) string {
	t.Helper()
	index := v1.ImageIndex(empty.Index)
	for _, p := range []v1.Platform{
		{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64", Variant: "v8"}, {OS: "unknown", Architecture: "unknown"},
	} {
		img := imageOf(t, p.Architecture,
			tarOf(t, "manifest.yaml=old", "rootfs/gone=x", "rootfs/kept="+p.Architecture),
			tarOf(t, "manifest.yaml="+p.Architecture, "rootfs/.wh.gone"))
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &p}})
	}
	tag := must(name.NewTag(host + "/acme/frr:1.0"))(t)
	noError(t, remote.WriteIndex(tag, index, remote.WithTransport(to), remote.WithContext(t.Context())))
	return tag.Context().Digest(must(index.Digest())(t).String()).String()
}

func filesOf(t *testing.T, archive io.Reader) (map[string]string, error) {
	t.Helper()
	files := map[string]string{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return files, err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return files, err
		}
		files[h.Name] = string(content)
	}
}

func TestExtract(t *testing.T) {
	t.Parallel()
	s := server()
	index := pushExtension(t, s)
	push(t, s, host+"/acme/one:1", imageOf(t, "arm64", tarOf(t, "a=b")))
	push(t, s, host+"/acme/handmade:1", imageOf(t, "", tarOf(t, "a=b")))
	c := client(t, s)
	type row struct {
		ref, arch string
		want      map[string]string
	}
	each(t, map[string]row{
		"of an index":         {index, "amd64", map[string]string{"manifest.yaml": "amd64", "rootfs/kept": "amd64"}},
		"of a variant":        {index, "arm64", map[string]string{"manifest.yaml": "arm64", "rootfs/kept": "arm64"}},
		"by tag":              {host + "/acme/frr:1.0", "amd64", map[string]string{"manifest.yaml": "amd64", "rootfs/kept": "amd64"}},
		"of an image":         {host + "/acme/one:1", "arm64", map[string]string{"a": "b"}},
		"of no architecture":  {host + "/acme/handmade:1", "arm64", map[string]string{"a": "b"}},
		"by tag and digest":   {strings.Replace(index, "frr@", "frr:2.0@", 1), "amd64", map[string]string{"manifest.yaml": "amd64", "rootfs/kept": "amd64"}},
		"of an image by name": {host + "/acme/handmade:1", "amd64", map[string]string{"a": "b"}},
	}, func(t *testing.T, tc row) {
		archive := must(c.Extract(t.Context(), tc.ref, tc.arch))(t)
		got, err := filesOf(t, archive)
		noError(t, errors.Join(err, archive.Close()))
		same(t, "files", tc.want, got)
	})
}

func TestExtractRefuses(t *testing.T) {
	t.Parallel()
	s := server()
	index := pushExtension(t, s)
	push(t, s, host+"/acme/one:1", imageOf(t, "arm64", tarOf(t, "a=b")))
	variants := v1.ImageIndex(empty.Index)
	for _, p := range []v1.Platform{{OS: "linux", Architecture: "amd64", Variant: "v2"}, {OS: "linux", Architecture: "amd64"}} {
		variants = mutate.AppendManifests(variants, mutate.IndexAddendum{
			Add: imageOf(t, "amd64", tarOf(t, "variant="+p.Variant)), Descriptor: v1.Descriptor{Platform: &p},
		})
	}
	tag := must(name.NewTag(host + "/acme/variants:1"))(t)
	noError(t, remote.WriteIndex(tag, variants, remote.WithTransport(s), remote.WithContext(t.Context())))
	// instead answers some requests with a status, or forges the answer.
	instead := func(method, part string, status int) http.RoundTripper {
		return direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method != method || !strings.Contains(r.URL.Path, part):
				s.ServeHTTP(w, r)
			case status != 0:
				http.Error(w, `{"errors":[{"code":"DENIED","message":"no"}]}`, status)
			default:
				s.ServeHTTP(forging{w}, r)
			}
		})}
	}
	type row struct {
		from      http.RoundTripper
		ref, arch string
		want      string
		kind      fault.Kind
		denied    bool
		hint      string
	}
	each(t, map[string]row{
		"no reference":      {s, "A B", "amd64", `image reference "A B": `, fault.Config, false, ""},
		"another arch":      {s, index, "riscv64", " has no image for riscv64: there is amd64, arm64", fault.Failed, false, "push the image for linux/riscv64 too"},
		"one arch":          {s, host + "/acme/one:1", "amd64", "/acme/one:1 has no image for amd64: there is arm64", fault.Failed, false, "push the image for linux/amd64 too"},
		"two of an arch":    {s, tag.String(), "amd64", "/acme/variants:1 has more than one image for amd64: sha256:", fault.Refused, false, "one image for each architecture"},
		"gone":              {s, index[:len(index)-8] + "00000000", "amd64", "registry " + host + " has no ", fault.Failed, false, "it was deleted or never pushed"},
		"denied":            {instead("GET", "/manifests/", 403), index, "amd64", "registry " + host + ": GET ", fault.Failed, true, "log in with"},
		"a layer is denied": {instead("GET", "/blobs/", 401), index, "amd64", "read " + index + ": registry " + host + ": ", fault.Failed, true, "log in with"},
		"a layer is gone":   {instead("GET", "/blobs/", 404), index, "amd64", "read " + index + ": registry " + host + ": ", fault.Failed, false, ""},
		"other content":     {instead("GET", "/blobs/", 0), index, "amd64", "a blob was damaged on the way: sha256:", fault.Failed, false, "run it again"},
		"another manifest":  {instead("GET", "/manifests/sha256", 0), index, "amd64", "does not match requested digest", fault.Failed, false, ""},
	}, func(t *testing.T, tc row) {
		archive, err := client(t, tc.from).Extract(t.Context(), tc.ref, tc.arch)
		if err == nil {
			_, err = filesOf(t, archive)
			noError(t, archive.Close())
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Fatalf("error\n got %v\nwant it to hold %q", err, tc.want)
		}
		if got := errors.Is(err, images.ErrDenied); got != tc.denied || fault.KindOf(err) != tc.kind {
			t.Errorf("denied = %t, kind = %v", got, fault.KindOf(err))
		}
		if got := strings.Join(fault.Hints(err), "; "); !strings.Contains(got, tc.hint) || got != "" && tc.hint == "" {
			t.Errorf("hint = %q, want it to hold %q", got, tc.hint)
		}
	})
}

// forging changes an answer.
type forging struct{ http.ResponseWriter }

func (f forging) Write(p []byte) (int, error) {
	return f.ResponseWriter.Write(bytes.ReplaceAll(p, []byte("amd64"), []byte("amd46")))
}

// TestExtractEndsEarly: a stream that is abandoned or cancelled ends.
func TestExtractEndsEarly(t *testing.T) {
	t.Parallel()
	s := server()
	push(t, s, host+"/acme/large:1", imageOf(t, "amd64", tarOf(t, "a="+strings.Repeat("a", 1<<20), "b=")))
	c := client(t, s)
	archive := must(c.Extract(t.Context(), host+"/acme/large:1", "amd64"))(t)
	if _, err := io.ReadFull(archive, make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	noError(t, archive.Close())
	ctx, cancel := context.WithCancel(t.Context())
	archive = must(c.Extract(ctx, host+"/acme/large:1", "amd64"))(t)
	cancel()
	if _, err := filesOf(t, archive); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	noError(t, archive.Close())
}
