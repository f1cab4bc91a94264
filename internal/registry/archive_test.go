package registry

import (
	"bytes"
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
	if len(m.Manifests) != 1 || m.Manifests[0].Platform.Architecture != "amd64" {
		t.Errorf("manifests: %+v", m.Manifests)
	}
	if told < 1000 {
		t.Errorf("progress up to %d bytes", told)
	}
	if tags := must.Get(remote.List(f.mirror))(t); len(tags) > 0 {
		t.Errorf("tags %q were set", tags)
	}
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
	if posts := f.to.asked(http.MethodPost); len(posts) > 0 {
		t.Errorf("something was sent: %q", posts)
	}
}

func TestBuiltUpon(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	ref := f.installer(t)
	must.Do(t, f.BuiltUpon(t.Context(), ref, f.base, "amd64"))
	if err := f.BuiltUpon(t.Context(), f.base, f.base, "arm64"); fault.KindOf(err) != fault.Refused {
		t.Errorf("without an added layer: %v", err)
	}
	if err := f.BuiltUpon(t.Context(), ref, f.source.String(), "amd64"); err == nil {
		t.Error("another base passes")
	}
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
	if err := f.SaveLayout(t.Context(), f.base, "riscv64", t.TempDir()); err == nil || !strings.Contains(err.Error(), "amd64, arm64") {
		t.Errorf("err = %v", err)
	}
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
		if d := cmp.Diff([]schematics.BootFile{iso, disk}, list); err != nil || d != "" {
			t.Fatalf("%v, beside it (-want +got):\n%s", err, d)
		}
		body := must.Get(f.AttachedFile(t.Context(), installer, disk))(t)
		defer body.Close()
		if got := must.Get(io.ReadAll(body))(t); !bytes.Equal(got, must.Get(os.ReadFile(diskFile))(t)) {
			t.Errorf("%d different bytes arrived", len(got))
		}
		f.to.set(nil)
		attach()
		if posts := f.to.asked(http.MethodPost); len(posts) > 0 {
			t.Errorf("sent again: %q", posts)
		}
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
		if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("error = %v, want %q", err, tc.err)
		}
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
	if err != nil || len(list) > 0 {
		t.Errorf("referrers = %v, %v", list, err)
	}
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
	if missing("/v2/acme/talos/referrers/"+digest, moved) {
		t.Error("a redirected list counts as missing")
	}
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
