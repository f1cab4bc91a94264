package registry

import (
	"archive/tar"
	"bytes"
	gocmp "cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
)

// tarOf is an uncompressed layer of these entries: "name=content" for a file, "name/" for a directory, "name -> target"
// for a symbolic link.
func tarOf(t *testing.T, entries ...string) v1.Layer {
	t.Helper()
	var b strings.Builder
	w := tar.NewWriter(&b)
	for _, e := range entries {
		file, content, _ := strings.Cut(e, "=")
		h := &tar.Header{Name: file, Size: int64(len(content)), Mode: 0o644, Typeflag: tar.TypeReg}
		if strings.HasSuffix(e, "/") {
			h.Typeflag = tar.TypeDir
		}
		if from, to, link := strings.Cut(e, " -> "); link {
			h.Typeflag, h.Name, h.Linkname = tar.TypeSymlink, from, to
		}
		must.Do(t, w.WriteHeader(h))
		must.Get(io.WriteString(w, content))(t)
	}
	must.Do(t, w.Close())
	return static.NewLayer([]byte(b.String()), types.OCIUncompressedLayer)
}

func imageOf(t *testing.T, arch string, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := must.Get(mutate.AppendLayers(empty.Image, layers...))(t)
	config := must.Get(img.ConfigFile())(t).DeepCopy()
	config.Architecture, config.OS = arch, "linux"
	return must.Get(mutate.ConfigFile(img, config))(t)
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
	tag := must.Get(name.NewTag(host + "/acme/frr:1.0"))(t)
	must.Do(t, remote.WriteIndex(tag, index, remote.WithTransport(to), remote.WithContext(t.Context())))
	return tag.Context().Digest(must.Get(index.Digest())(t).String()).String()
}

// eachOf calls do for every entry of a tar.
func eachOf(archive io.Reader, do func(h *tar.Header, content string)) error {
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		do(h, string(content))
	}
}

func filesOf(t *testing.T, archive io.Reader) (map[string]string, error) {
	t.Helper()
	files := map[string]string{}
	err := eachOf(archive, func(h *tar.Header, content string) { files[h.Name] = content })
	return files, err
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
	must.Each(t, map[string]row{
		"of an index":         {index, "amd64", map[string]string{"manifest.yaml": "amd64", "rootfs/kept": "amd64"}},
		"of a variant":        {index, "arm64", map[string]string{"manifest.yaml": "arm64", "rootfs/kept": "arm64"}},
		"by tag":              {host + "/acme/frr:1.0", "amd64", map[string]string{"manifest.yaml": "amd64", "rootfs/kept": "amd64"}},
		"of an image":         {host + "/acme/one:1", "arm64", map[string]string{"a": "b"}},
		"of no architecture":  {host + "/acme/handmade:1", "arm64", map[string]string{"a": "b"}},
		"by tag and digest":   {strings.Replace(index, "frr@", "frr:2.0@", 1), "amd64", map[string]string{"manifest.yaml": "amd64", "rootfs/kept": "amd64"}},
		"of an image by name": {host + "/acme/handmade:1", "amd64", map[string]string{"a": "b"}},
	}, func(t *testing.T, tc row) {
		archive := must.Get(c.Extract(t.Context(), tc.ref, tc.arch))(t)
		got, err := filesOf(t, archive)
		must.Do(t, errors.Join(err, archive.Close()))
		must.Equal(t, "files", tc.want, got)
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
	tag := must.Get(name.NewTag(host + "/acme/variants:1"))(t)
	must.Do(t, remote.WriteIndex(tag, variants, remote.WithTransport(s), remote.WithContext(t.Context())))
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
	must.Each(t, map[string]row{
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
			must.Do(t, archive.Close())
		}
		must.Contain(t, "error", fmt.Sprint(err), tc.want)
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
	archive := must.Get(c.Extract(t.Context(), host+"/acme/large:1", "amd64"))(t)
	must.Get(io.ReadFull(archive, make([]byte, 4096)))(t)
	must.Do(t, archive.Close())
	ctx, cancel := context.WithCancel(t.Context())
	archive = must.Get(c.Extract(ctx, host+"/acme/large:1", "amd64"))(t)
	cancel()
	if _, err := filesOf(t, archive); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	must.Do(t, archive.Close())
}

// layerOf is a compressed layer of these entries, as of tarOf; a file's content is the layer's name.
func layerOf(t *testing.T, layer string, entries ...string) v1.Layer {
	t.Helper()
	entries = slices.Clone(entries)
	for i, e := range entries {
		if !strings.HasSuffix(e, "/") && !strings.Contains(e, " -> ") {
			entries[i] = e + "=" + layer
		}
	}
	return must.Get(tarball.LayerFromOpener(tarOf(t, entries...).Uncompressed, tarball.WithCompressionLevel(gzip.BestSpeed)))(t)
}

// flattened lists the content of a tar, a line for each entry.
func flattened(t *testing.T, layers ...v1.Layer) (list []string, err error) {
	t.Helper()
	archive := flatten(must.Get(mutate.AppendLayers(empty.Image, layers...))(t))
	defer archive.Close()
	err = eachOf(archive, func(h *tar.Header, content string) {
		list = append(list, strings.TrimSpace(fmt.Sprintf("%s %s%s", h.Name, content, h.Linkname)))
	})
	return list, err
}

func TestFlatten(t *testing.T) {
	t.Parallel()
	type row struct {
		lower, upper []string
		want         []string
		err          string
	}
	must.Each(t, map[string]row{
		"both":                     {lower: []string{"a/", "a/x"}, upper: []string{"a/", "a/y"}, want: []string{"a", "a/y upper", "a/x lower"}},
		"the upper one counts":     {lower: []string{"./a"}, upper: []string{"/a"}, want: []string{"a upper"}},
		"a file hides a directory": {lower: []string{"a/", "a/x"}, upper: []string{"a"}, want: []string{"a upper"}},
		"a link hides a directory": {lower: []string{"a/x"}, upper: []string{"a -> ../../b"}, want: []string{"a ../../b"}},
		"removed":                  {lower: []string{"a/", "a/x", "b"}, upper: []string{".wh.a"}, want: []string{"b lower"}},
		"removed and restored":     {lower: []string{"a/x"}, upper: []string{".wh.a", "a/", "a/y"}, want: []string{"a", "a/y upper"}},
		"only this directory":      {lower: []string{"a/x", "b"}, upper: []string{"a/.wh..wh..opq", "a/y"}, want: []string{"a/y upper", "b lower"}},
		"nothing but this":         {lower: []string{"a/x", "b"}, upper: []string{".wh..wh..opq", "c"}, want: []string{"c upper"}},
		"not in its own layer":     {lower: []string{".wh.b", "b"}, upper: []string{"c"}, want: []string{"c upper", "b lower"}},
		"a directory twice":        {lower: []string{"a/", "a/"}, upper: []string{"c"}, want: []string{"c upper", "a"}},
		"a file twice":             {lower: []string{"a", "./a"}, upper: []string{"c"}, want: []string{"c upper", "a lower"}, err: "a occurs twice"},
		"out of the image":         {lower: []string{"a/../../b"}, upper: []string{"c"}, want: []string{"c upper"}, err: `"a/../../b" leads out of the image`},
		"a long path":              {lower: []string{strings.Repeat("a", 4097)}, upper: []string{"c"}, want: []string{"c upper"}, err: "a path of 4097 bytes"},
		"a deep path":              {lower: []string{strings.Repeat("a/", 128) + "b"}, upper: []string{"c"}, want: []string{"c upper"}, err: "a path of 257 bytes"},
	}, func(t *testing.T, tc row) {
		got, err := flattened(t, layerOf(t, "lower", tc.lower...), layerOf(t, "upper", tc.upper...))
		must.Contain(t, "error", fmt.Sprint(err), gocmp.Or(tc.err, "<nil>"))
		must.Equal(t, "result", tc.want, got)
	})
}

// TestFlattenThreeLayers: what the upper one hides stays hidden, whatever the middle one says.
func TestFlattenThreeLayers(t *testing.T) {
	t.Parallel()
	got := must.Get(flattened(t, layerOf(t, "lower", "a/x", "b/x"), layerOf(t, "middle", "a/", "b"), layerOf(t, "upper", "a", "b/", "b/y")))(t)
	must.Equal(t, "result", []string{"a upper", "b", "b/y upper"}, got)
}

// TestFlattenIsBounded: an image that is small in transit cannot make us keep much in memory.
func TestFlattenIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	long := strings.Repeat("a", 4000)
	names := make([]string, maxNamesBytes/4000+1)
	for i := range names {
		names[i] = fmt.Sprintf("%s%08d", long, i)
	}
	if _, err := flattened(t, layerOf(t, "", names...)); err == nil || !strings.Contains(err.Error(), "bytes of paths") {
		t.Errorf("error %v", err)
	}
}

// damaging flips a bit of its answer: in the n-th byte from the end.
type damaging struct {
	http.ResponseWriter
	fromEnd int
}

func (d damaging) Write(p []byte) (int, error) {
	b := append([]byte(nil), p...)
	b[max(0, len(b)-d.fromEnd)] ^= 1
	return d.ResponseWriter.Write(b)
}

// A damaged blob is reported as such, whichever step of unpacking fails first, and is no reason to lock anything else.
func TestDamagedBlob(t *testing.T) {
	t.Parallel()
	s := server()
	index := pushExtension(t, s)
	cases := map[string]int{"the end of gzip": 1, "its checksum": 8, "in the middle": 40, "the beginning": 1 << 20}
	must.Each(t, cases, func(t *testing.T, fromEnd int) {
		c := client(t, damages(s, fromEnd))
		archive := must.Get(c.Extract(t.Context(), index, "amd64"))(t)
		_, err := filesOf(t, archive)
		must.Do(t, archive.Close())
		saysDamaged(t, err)
	})
}

func TestDamagedCopy(t *testing.T) {
	t.Parallel()
	s := server()
	index := pushExtension(t, s)
	const mirror = "127.0.0.1:5001"
	from, to := damages(s, 1), server()
	c := client(t, direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Host == mirror {
			to.ServeHTTP(w, r)
			return
		}
		from.ServeHTTP(w, r)
	})})
	saysDamaged(t, c.Copy(t.Context(), index, mirror+"/acme/talos", nil))
}

// damages damages the blobs that a registry sends.
func damages(s direct, fromEnd int) direct {
	return direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w = damaging{w, fromEnd}
		}
		s.ServeHTTP(w, r)
	})}
}

func saysDamaged(t *testing.T, err error) {
	t.Helper()
	must.Contain(t, "error", fmt.Sprint(err), "a blob was damaged on the way: ")
	err = fault.ImageDiffers.Else(err) // like a step that compares images
	must.Equal(t, "code", fault.BuildFailed, fault.CodeOf(err))
	hints := strings.Join(fault.Hints(err), "; ")
	must.Hold(t, strings.HasPrefix(hints, "run it again. ") && !strings.Contains(hints, "lock"), "hints %q", hints)
}

const frrManifest = "manifest.yaml=version: v1alpha1\nmetadata:\n  name: frr\n  version: 1.7.15\n  author: Acme\n"

func TestDescribe(t *testing.T) {
	t.Parallel()
	type row struct {
		layers []v1.Layer
		arch   []string // of an index; of an image if there is one only
		ask    string
		want   schematics.ExtensionImage
		err    string
	}
	must.Each(t, map[string]row{
		"an index": {
			layers: []v1.Layer{tarOf(t, "rootfs/usr/bin/frr=x"), tarOf(t, frrManifest)}, arch: []string{"arm64", "amd64"}, ask: "amd64",
			want: schematics.ExtensionImage{Architectures: []string{"amd64", "arm64"}, Name: "frr", Version: "1.7.15"},
		},
		"an index without it": {
			layers: []v1.Layer{tarOf(t, frrManifest)}, arch: []string{"arm64", "amd64"}, ask: "riscv64",
			want: schematics.ExtensionImage{Architectures: []string{"amd64", "arm64"}},
		},
		"an image": {
			layers: []v1.Layer{tarOf(t, "./"+frrManifest)}, arch: []string{"arm64"}, ask: "arm64",
			want: schematics.ExtensionImage{Architectures: []string{"arm64"}, Name: "frr", Version: "1.7.15"},
		},
		"an image for another": {
			layers: []v1.Layer{tarOf(t, frrManifest)}, arch: []string{"arm64"}, ask: "amd64",
			want: schematics.ExtensionImage{Architectures: []string{"arm64"}},
		},
		"an image that does not say": {
			layers: []v1.Layer{tarOf(t, frrManifest)}, arch: []string{""}, ask: "amd64",
			want: schematics.ExtensionImage{Architectures: []string{"amd64"}, Name: "frr", Version: "1.7.15"},
		},
		"the upper layer's": {
			layers: []v1.Layer{tarOf(t, strings.Replace(frrManifest, "frr", "old", 1)), tarOf(t, frrManifest), tarOf(t, "rootfs/a=b")}, arch: []string{"amd64"}, ask: "amd64",
			want: schematics.ExtensionImage{Architectures: []string{"amd64"}, Name: "frr", Version: "1.7.15"},
		},
		"a hidden one": {
			layers: []v1.Layer{tarOf(t, frrManifest), tarOf(t, ".wh.manifest.yaml")}, arch: []string{"amd64"}, ask: "amd64",
			want: schematics.ExtensionImage{Architectures: []string{"amd64"}}, err: " is not an extension image: it has no manifest.yaml",
		},
		"no manifest": {
			layers: []v1.Layer{tarOf(t, "rootfs/manifest.yaml=x")}, arch: []string{"amd64"}, ask: "amd64",
			want: schematics.ExtensionImage{Architectures: []string{"amd64"}}, err: " is not an extension image: it has no manifest.yaml",
		},
		"another version": {
			layers: []v1.Layer{tarOf(t, "manifest.yaml=version: v2\n")}, arch: []string{"amd64"}, ask: "amd64",
			want: schematics.ExtensionImage{Architectures: []string{"amd64"}}, err: ` is not an extension image: manifest.yaml: version is "v2", not v1alpha1`,
		},
		"no name": {
			layers: []v1.Layer{tarOf(t, "manifest.yaml=version: v1alpha1\n")}, arch: []string{"amd64"}, ask: "amd64",
			want: schematics.ExtensionImage{Architectures: []string{"amd64"}}, err: " is not an extension image: manifest.yaml: metadata.name is missing",
		},
		"no YAML": {
			layers: []v1.Layer{tarOf(t, "manifest.yaml={")}, arch: []string{"amd64"}, ask: "amd64",
			want: schematics.ExtensionImage{Architectures: []string{"amd64"}}, err: " is not an extension image: manifest.yaml: ",
		},
		"not there": {ask: "amd64", err: "registry " + host + " has no "},
	}, func(t *testing.T, tc row) {
		s := server()
		ref := must.Get(name.NewDigest(host + "/acme/frr@sha256:" + strings.Repeat("0", 64)))(t)
		if tc.layers != nil {
			ref = pushFor(t, s, tc.arch, tc.layers...)
		}
		got, err := client(t, s).Describe(t.Context(), ref.String(), tc.ask)
		must.Equal(t, "image", tc.want, got)
		if (err != nil) != (tc.err != "") || err != nil && (!strings.Contains(err.Error(), tc.err) || fault.KindOf(err) != fault.Config) {
			t.Errorf("error = %v (%v), want %q", err, fault.KindOf(err), tc.err)
		}
	})
}

// TestDescribeRefusesPathsOutOfTheRoot: no build would unpack them.
func TestDescribeRefusesPathsOutOfTheRoot(t *testing.T) {
	t.Parallel()
	for path, bad := range map[string]bool{"rootfs/../../etc/cron.d/frr": true, "./rootfs/a/../../init": true, "rootfs/a/../b": false} {
		for _, layers := range [][]v1.Layer{{tarOf(t, frrManifest, path+"=x")}, {tarOf(t, frrManifest), tarOf(t, path+"=x")}} {
			s := server()
			_, err := client(t, s).Describe(t.Context(), pushFor(t, s, []string{"amd64"}, layers...).String(), "amd64")
			want := " is not an extension image: \"" + path + "\" leads out of its root"
			if (err != nil) != bad || bad && (!strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Config) {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

// pushFor pushes images of these layers, as an index unless there is only one.
func pushFor(t *testing.T, to direct, arch []string, layers ...v1.Layer) name.Digest {
	t.Helper()
	tag := must.Get(name.NewTag(host + "/acme/frr:1"))(t)
	if len(arch) == 1 {
		img := imageOf(t, arch[0], layers...)
		push(t, to, tag.String(), img)
		return tag.Context().Digest(must.Get(img.Digest())(t).String())
	}
	index := v1.ImageIndex(empty.Index)
	for _, a := range arch {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: imageOf(t, a, layers...), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: a}},
		})
	}
	must.Do(t, remote.WriteIndex(tag, index, remote.WithTransport(to), remote.WithContext(t.Context())))
	return tag.Context().Digest(must.Get(index.Digest())(t).String())
}

// TestDescribeReadsTheTopOnly: an extension's content is not fetched for its name.
func TestDescribeReadsTheTopOnly(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	below, top := tarOf(t, "rootfs/usr/bin/frr=x"), tarOf(t, frrManifest)
	img := imageOf(t, "amd64", below, top)
	push(t, http.DefaultTransport, c.from.host+"/acme/frr:1", img)
	c.from.set(nil)
	ref := c.from.host + "/acme/frr@" + must.Get(img.Digest())(t).String()
	must.Get(c.Describe(t.Context(), ref, "amd64"))(t)
	want := map[string]bool{must.Get(top.Digest())(t).String(): true, must.Get(below.Digest())(t).String(): false}
	got := map[string]bool{}
	for digest := range want {
		got[digest] = strings.Contains(strings.Join(c.from.asked("GET"), " "), digest)
	}
	must.Equal(t, "fetched", want, got)
}

func TestNearby(t *testing.T) {
	t.Parallel()
	digest := "@sha256:" + strings.Repeat("1", 64)
	type row struct{ extensions, ref, want string }
	must.Each(t, map[string]row{
		"from where the list is":  {"mirror.acme/talos/extensions", "ghcr.io/siderolabs/zfs" + digest, "mirror.acme/talos/zfs" + digest},
		"a tag":                   {"mirror.acme/talos/extensions", "ghcr.io/siderolabs/imager:v1.13.9", "mirror.acme/talos/imager:v1.13.9"},
		"tag and digest":          {"mirror.acme/talos/extensions", "ghcr.io/siderolabs/zfs:1" + digest, "mirror.acme/talos/zfs" + digest},
		"below":                   {"mirror.acme/talos/extensions", "ghcr.io/siderolabs/a/b" + digest, "mirror.acme/talos/a/b" + digest},
		"foreign":                 {"mirror.acme/talos/extensions", "ghcr.io/acme/zfs" + digest, "ghcr.io/acme/zfs" + digest},
		"a name that begins so":   {"mirror.acme/talos/extensions", "ghcr.io/siderolabsx/zfs" + digest, "ghcr.io/siderolabsx/zfs" + digest},
		"the list where it is":    {"", "ghcr.io/siderolabs/zfs" + digest, "ghcr.io/siderolabs/zfs" + digest},
		"at the registry's root":  {"127.0.0.1:5000/extensions", "ghcr.io/siderolabs/zfs" + digest, "127.0.0.1:5000/zfs" + digest},
		"in the registry's depth": {"127.0.0.1:5000/a/b/c", "ghcr.io/siderolabs/zfs" + digest, "127.0.0.1:5000/a/b/zfs" + digest},
	}, func(t *testing.T, tc row) {
		c := must.Get(New(Options{Extensions: tc.extensions}))(t)
		must.Equal(t, "relocated", tc.want, c.relocate(must.Get(name.ParseReference(tc.ref))(t)).String())
	})
}

// foundry is a copier's registries with a base image in the first, and images based on it in files.
type foundry struct {
	*copier
	base string // by digest
	img  v1.Image
}

func newFoundry(t *testing.T, o ...ggcr.Option) *foundry {
	t.Helper()
	f := &foundry{copier: newCopier(t, o...)}
	f.img = forArch(t, must.Get(random.Image(256, 1))(t), "amd64")
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: forArch(t, must.Get(random.Image(256, 1))(t), "arm64"), Descriptor: linux("arm64")},
		mutate.IndexAddendum{Add: f.img, Descriptor: linux("amd64")})
	repository := must.Get(name.NewRepository(f.from.host + "/siderolabs/installer-base"))(t)
	f.base = repository.Digest(must.Get(index.Digest())(t).String()).String()
	must.Do(t, remote.WriteIndex(repository.Tag("v1.13.9"), index))
	return f
}

func linux(arch string) v1.Descriptor {
	return v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}
}

func forArch(t *testing.T, img v1.Image, arch string) v1.Image {
	t.Helper()
	config := must.Get(img.ConfigFile())(t).DeepCopy()
	config.Architecture, config.OS = arch, "linux"
	return must.Get(mutate.ConfigFile(img, config))(t)
}

// save writes the base with one more layer as a tarball.
func (f *foundry) save(t *testing.T, upon v1.Image) string {
	t.Helper()
	payload := tarOf(t, "usr/install/amd64/vmlinuz.efi="+rand.Text(), "overlay/extra-options={}")
	return f.saved(t, must.Get(mutate.AppendLayers(upon, must.Get(tarball.LayerFromOpener(payload.Uncompressed))(t)))(t))
}

func (f *foundry) saved(t *testing.T, img v1.Image) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "installer-amd64.tar")
	must.Do(t, tarball.WriteToFile(file, must.Get(name.ParseReference(f.base))(t), img))
	return file
}

// over writes an image based on the base, with one more layer over the imager's.
func (f *foundry) over(t *testing.T, file string) string {
	t.Helper()
	return f.saved(t, must.Get(mutate.AppendLayers(f.img, tarOf(t, "usr/install/amd64/vmlinuz.efi=UKI"), tarOf(t, file)))(t))
}

// installer pushes an image based on the base, and returns it by digest.
func (f *foundry) installer(t *testing.T) string {
	t.Helper()
	return f.mirror.Digest(must.Get(f.PushArchive(t.Context(), f.push(f.save(t, f.img))))(t)).String()
}

func (f *foundry) push(file string) images.ArchivePush {
	return images.ArchivePush{File: file, Repository: f.mirror.String(), Arch: "amd64", Base: f.base}
}

func TestPushArchive(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	p := f.push(f.save(t, f.img))
	var told int64
	p.Progress = func(done int64) { told = done }
	digest := must.Get(f.PushArchive(t.Context(), p))(t)
	index := must.Get(remote.Index(f.mirror.Digest(digest)))(t)
	must.Do(t, validate.Index(index))
	m := must.Get(index.IndexManifest())(t)
	must.Hold(t, len(m.Manifests) == 1 && m.Manifests[0].Platform.Architecture == "amd64", "manifests: %+v", m.Manifests)
	must.Hold(t, told >= 1000, "progress up to %d bytes", told)
	tags := must.Get(remote.List(f.mirror))(t)
	must.Hold(t, len(tags) == 0, "tags %q were set", tags)
	f.to.set(nil)
	must.Equal(t, "again", digest, must.Get(f.PushArchive(t.Context(), p))(t))
	for _, r := range f.to.asked(http.MethodPost) {
		t.Errorf("sent again: %s", r)
	}
}

func TestPushArchiveRefuses(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	good := f.save(t, f.img)
	whole := must.Get(os.ReadFile(good))(t)
	type row struct {
		file string
		arch string
		want string
	}
	must.Each(t, map[string]row{
		"another architecture": {good, "arm64", `the image is for "amd64", not for arm64`},
		"another base":         {f.save(t, forArch(t, must.Get(random.Image(256, 1))(t), "amd64")), "amd64", "layer 0 is "},
		"another program":      {f.over(t, "bin/installer=backdoor"), "amd64", "layer 2 changes /bin/installer"},
		"a program removed":    {f.over(t, "usr/install/amd64/.wh.vmlinuz.efi="), "amd64", "layer 2 changes /usr/install/amd64/.wh.vmlinuz.efi"},
		"no added layer":       {f.save(t, forArch(t, empty.Image, "amd64")), "amd64", "it has only 1 layers"},
		"no tarball":           {write(t, []byte("no tarball")), "amd64", "read the tarball"},
		"cut off":              {write(t, whole[:len(whole)/3]), "amd64", "read the tarball"},
		"no file":              {filepath.Join(t.TempDir(), "none"), "amd64", "no such file"},
	}, func(t *testing.T, c row) {
		p := f.push(c.file)
		p.Arch = c.arch
		_, err := f.PushArchive(t.Context(), p)
		must.Contain(t, "error", fmt.Sprint(err), c.want)
	})
	posts := f.to.asked(http.MethodPost)
	must.Hold(t, len(posts) == 0, "something was sent: %q", posts)
}

func TestBuiltUpon(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	ref := f.installer(t)
	must.Do(t, f.BuiltUpon(t.Context(), ref, f.base, "amd64"))
	err := f.BuiltUpon(t.Context(), f.base, f.base, "arm64")
	must.Hold(t, fault.KindOf(err) == fault.Refused, "without an added layer: %v", err)
	must.Hold(t, f.BuiltUpon(t.Context(), ref, f.source.String(), "amd64") != nil, "another base passes")
}

func write(t *testing.T, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, content, 0o600))
	return file
}

// The imager takes the image for its architecture from a layout by the platform in its index.
func TestSaveLayout(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	dir := filepath.Join(t.TempDir(), "base")
	must.Do(t, f.SaveLayout(t.Context(), f.base, "amd64", dir))
	index := must.Get(must.Get(layout.FromPath(dir))(t).ImageIndex())(t)
	must.Do(t, validate.Index(index))
	m := must.Get(index.IndexManifest())(t)
	if len(m.Manifests) != 1 || m.Manifests[0].Platform.Architecture != "amd64" || m.Manifests[0].Digest != must.Get(f.img.Digest())(t) {
		t.Errorf("manifests: %+v", m.Manifests)
	}
	err := f.SaveLayout(t.Context(), f.base, "riscv64", t.TempDir())
	must.Hold(t, err != nil && strings.Contains(err.Error(), "amd64, arm64"), "err = %v", err)
}

// isoOf is a boot ISO of some bytes.
func isoOf(t *testing.T, content []byte) (schematics.BootFile, string) {
	t.Helper()
	sum, n, err := v1.SHA256(bytes.NewReader(content))
	must.Do(t, err)
	return schematics.BootFile{Name: "recast-v1.13.9-abc-nocloud-amd64.iso", SHA256: sum.Hex, SizeBytes: n}, write(t, content)
}

func TestFilesBesideAnInstaller(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string][]ggcr.Option{
		"with the referrers API":    {ggcr.WithReferrersSupport(true)},
		"with the tag in its place": nil,
	}, func(t *testing.T, o []ggcr.Option) {
		f := newFoundry(t, o...)
		installer := f.installer(t)
		if list, err := f.Attached(t.Context(), installer); err != nil || len(list) > 0 {
			t.Errorf("beside it initially: %v, %v", list, err)
		}
		iso, isoFile := isoOf(t, bytes.Repeat([]byte("ISO"), 10_000))
		disk, diskFile := isoOf(t, bytes.Repeat([]byte("disk"), 10_000))
		disk.Name = "recast-v1.13.9-abc-nocloud-amd64.qcow2"
		attach := func() {
			must.Do(t, errors.Join(f.Attach(t.Context(), installer, isoFile, images.BootISO, iso, nil), f.Attach(t.Context(), installer, diskFile, images.DiskImage, disk, nil)))
		}
		attach()
		list, err := f.Attached(t.Context(), installer)
		slices.SortFunc(list, func(a, b schematics.BootFile) int { return strings.Compare(a.Name, b.Name) })
		d := cmp.Diff([]schematics.BootFile{iso, disk}, list)
		must.Be(t, err == nil && d == "", "%v, beside it (-want +got):\n%s", err, d)
		body := must.Get(f.AttachedFile(t.Context(), installer, disk))(t)
		defer body.Close()
		got := must.Get(io.ReadAll(body))(t)
		must.Hold(t, bytes.Equal(got, must.Get(os.ReadFile(diskFile))(t)), "%d different bytes arrived", len(got))
		f.to.set(nil)
		attach()
		posts := f.to.asked(http.MethodPost)
		must.Hold(t, len(posts) == 0, "sent again: %q", posts)
	})
}

func TestAttachISORefusesOtherBytes(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	digest := must.Get(f.PushArchive(t.Context(), f.push(f.save(t, f.img))))(t)
	iso, _ := isoOf(t, []byte("the ISO"))
	if err := f.Attach(t.Context(), f.mirror.Digest(digest).String(), write(t, []byte("another")), images.BootISO, iso, nil); err == nil {
		t.Error("a registry accepted other bytes under the ISO's digest")
	}
}

// A copy of a mirror includes the ISO, like everything that refers to an installer.
func TestCopyTakesTheISOAlong(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	p := f.push(f.save(t, f.img))
	p.Repository = f.from.host + "/acme/talos"
	digest := must.Get(f.PushArchive(t.Context(), p))(t)
	iso, file := isoOf(t, []byte("the ISO"))
	from := p.Repository + "@" + digest
	must.Do(t, errors.Join(f.Attach(t.Context(), from, file, images.BootISO, iso, nil), f.Copy(t.Context(), from, f.mirror.String(), nil)))
	must.Equal(t, "beside the copy", []schematics.BootFile{iso}, must.Get(f.Attached(t.Context(), f.mirror.Digest(digest).String()))(t))
}

// signed is an image as cosign pushes signatures; each text is annotated verbatim.
func signed(t *testing.T, mediaType types.MediaType, payloads map[string]string) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for payload, signature := range payloads {
		img = must.Get(mutate.Append(img, mutate.Addendum{
			Layer: static.NewLayer([]byte(payload), mediaType), Annotations: map[string]string{signatureAnnotation: signature},
		}))(t)
	}
	return img
}

func TestSignatures(t *testing.T) {
	t.Parallel()
	good := base64.StdEncoding.EncodeToString([]byte("signature"))
	many := map[string]string{}
	for i := range maxSignatures + 1 {
		many[strings.Repeat("x", i+1)] = good
	}
	type row struct {
		sig  v1.Image
		want []images.Signature
		err  string
	}
	must.Each(t, map[string]row{
		"none":             {},
		"one":              {sig: signed(t, signatureType, map[string]string{"{}": good}), want: []images.Signature{{Payload: []byte("{}"), Signature: []byte("signature")}}},
		"something else":   {sig: signed(t, "text/spdx", map[string]string{"{}": good})},
		"no annotation":    {sig: signed(t, signatureType, map[string]string{"{}": ""}), err: "annotation dev.cosignproject.cosign/signature is missing or damaged"},
		"a bad annotation": {sig: signed(t, signatureType, map[string]string{"{}": "!"}), err: "annotation dev.cosignproject.cosign/signature is missing or damaged"},
		"too large":        {sig: signed(t, signatureType, map[string]string{strings.Repeat("x", maxPayloadBytes+1): good}), err: "it has 1048577 bytes"},
		"too many":         {sig: signed(t, signatureType, many), err: "it has 65 layers"},
	}, func(t *testing.T, tc row) {
		s := server()
		of := must.Get(name.NewDigest(host + "/metal-installer/abc@sha256:" + strings.Repeat("a", 64)))(t)
		if tc.sig != nil {
			push(t, s, of.Context().Tag("sha256-"+strings.Repeat("a", 64)+".sig").String(), tc.sig)
		}
		got, err := client(t, s).Signatures(t.Context(), of.String())
		must.Equal(t, "signatures", tc.want, got)
		must.Hold(t, (err != nil) == (tc.err != "") && (err == nil || strings.Contains(err.Error(), tc.err)),
			"error = %v, want %q", err, tc.err)
	})
}

func TestSignaturesOfWhatIsDenied(t *testing.T) {
	t.Parallel()
	locked := direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			http.Error(w, `{"errors":[{"code":"DENIED","message":"no"}]}`, http.StatusForbidden)
		}
	})}
	c := client(t, locked)
	if _, err := c.Signatures(t.Context(), host+"/a/b@sha256:"+strings.Repeat("a", 64)); !errors.Is(err, images.ErrDenied) {
		t.Errorf("denied: %v", err)
	}
}

// quirk answers some requests differently from the registry behind it.
type quirk struct {
	inner  http.RoundTripper
	answer func(*http.Request) *http.Response // nil: the registry answers
}

func (q quirk) RoundTrip(r *http.Request) (*http.Response, error) {
	if resp := q.answer(r); resp != nil {
		resp.Request, resp.Proto, resp.ProtoMajor, resp.ProtoMinor = r, "HTTP/1.1", 1, 1
		if resp.Body == nil {
			resp.Body = io.NopCloser(strings.NewReader("<html>no such thing</html>"))
		}
		return resp, nil
	}
	return q.inner.RoundTrip(r)
}

func answers(status int, headers ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: h}
}

// TestReferrersOfRegistriesWithoutTheAPI: however a registry reports that it has no
// referrers API, the list under a tag replaces it, for writing and reading.
func TestReferrersOfRegistriesWithoutTheAPI(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]*http.Response{
		"405":                          answers(http.StatusMethodNotAllowed),
		"406, like Artifactory":        answers(http.StatusNotAcceptable), // go-containerregistry pull request 2026
		"501":                          answers(http.StatusNotImplemented),
		"a web page":                   answers(http.StatusOK, "Content-Type", "text/html; charset=utf-8"), // sigstore-js pull request 1187
		"JSON that is no list":         answers(http.StatusOK, "Content-Type", "application/json"),
		"to web pages, like ghcr.io":   answers(http.StatusSeeOther, "Location", "https://github.com/-/v2/packages/container/package/acme%2Ftalos%2Freferrers%2Fsha256"), // artifacthub/hub issue 4785
		"to nowhere":                   answers(http.StatusFound),
		"404, as the specification is": answers(http.StatusNotFound),
	}, func(t *testing.T, answer *http.Response) {
		f := newFoundry(t)
		f.transport = quirk{f.transport, func(r *http.Request) *http.Response {
			switch {
			case r.URL.Host == "github.com":
				return answers(http.StatusTooManyRequests)
			case strings.Contains(r.URL.Path, "/referrers/"):
				again := *answer
				return &again
			}
			return nil
		}}
		installer := f.installer(t)
		iso, file := isoOf(t, []byte("the ISO"))
		must.Do(t, f.Attach(t.Context(), installer, file, images.BootISO, iso, nil))
		must.Equal(t, "beside it", []schematics.BootFile{iso}, must.Get(f.Attached(t.Context(), installer))(t))
	})
}

// TestReferrersWhereATagIsADigest: GitLab takes the tag sha256-… for the digest, so
// that an index would refer to itself (oras-project/oras-go issue 1396).
func TestReferrersWhereATagIsADigest(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	installer := f.installer(t)
	inner := f.transport
	f.transport = quirk{inner, func(r *http.Request) *http.Response {
		if !strings.Contains(r.URL.Path, "/manifests/sha256-") {
			return nil
		}
		same := r.Clone(r.Context())
		same.URL.Path = strings.Replace(r.URL.Path, "sha256-", "sha256:", 1)
		return must.Get(inner.RoundTrip(same))(t)
	}}
	list, err := f.Referrers(t.Context(), installer)
	must.Hold(t, err == nil && len(list) == 0, "referrers = %v, %v", list, err)
}

// TestReferrersWithParameters: a media type may have parameters.
func TestReferrersWithParameters(t *testing.T) {
	t.Parallel()
	resp := answers(http.StatusOK, "Content-Type", "application/vnd.oci.image.index.v1+json; charset=utf-8")
	digest := "sha256:" + strings.Repeat("a", 64)
	if missing("/v2/acme/talos/referrers/"+digest, resp) || resp.Header.Get("Content-Type") != "application/vnd.oci.image.index.v1+json" {
		t.Errorf("counts as no list, or stays unchanged: %v", resp.Header)
	}
	moved := answers(http.StatusTemporaryRedirect, "Location", "https://other.example/v2/acme/talos/referrers/"+digest)
	must.Hold(t, !missing("/v2/acme/talos/referrers/"+digest, moved), "a redirected list counts as missing")
}

// TestHeadOfRegistriesWithoutHead: crossplane pull request 3223, containerd issue 5124.
func TestHeadOfRegistriesWithoutHead(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]*http.Response{
		"not allowed":    answers(http.StatusMethodNotAllowed),
		"nothing in it":  answers(http.StatusOK),
		"without a size": {StatusCode: http.StatusOK, ContentLength: -1, Header: answers(0, "Content-Type", "application/vnd.oci.image.index.v1+json").Header},
	}, func(t *testing.T, answer *http.Response) {
		f := newFoundry(t)
		digest := must.Get(f.PushArchive(t.Context(), f.push(f.save(t, f.img))))(t)
		tag := f.mirror.Tag("v1.13.9-abc").String()
		must.Do(t, f.Tag(t.Context(), f.mirror.Digest(digest).String(), tag))
		f.transport = quirk{f.transport, func(r *http.Request) *http.Response {
			if r.Method != http.MethodHead {
				return nil
			}
			again := *answer
			again.Body = http.NoBody
			return &again
		}}
		if got, found, err := f.Head(t.Context(), tag); got != digest || !found || err != nil {
			t.Errorf("%q, %t, %v, want %s", got, found, err, digest)
		}
	})
}
