package registry

import (
	"bytes"
	"crypto/rand"
	"errors"
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
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// foundry is a copier's registries with a base image in the first, and images based
// on it in files.
type foundry struct {
	*copier
	base string // by digest
	img  v1.Image
}

func newFoundry(t *testing.T, o ...ggcr.Option) *foundry {
	t.Helper()
	f := &foundry{copier: newCopier(t, o...)}
	f.img = forArch(t, must(random.Image(256, 1))(t), "amd64")
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: forArch(t, must(random.Image(256, 1))(t), "arm64"), Descriptor: linux("arm64")},
		mutate.IndexAddendum{Add: f.img, Descriptor: linux("amd64")})
	repository := must(name.NewRepository(f.from.host + "/siderolabs/installer-base"))(t)
	f.base = repository.Digest(must(index.Digest())(t).String()).String()
	noError(t, remote.WriteIndex(repository.Tag("v1.13.9"), index))
	return f
}

func linux(arch string) v1.Descriptor {
	return v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}
}

func forArch(t *testing.T, img v1.Image, arch string) v1.Image {
	t.Helper()
	config := must(img.ConfigFile())(t).DeepCopy()
	config.Architecture, config.OS = arch, "linux"
	return must(mutate.ConfigFile(img, config))(t)
}

// save writes the base with one more layer as a tarball.
func (f *foundry) save(t *testing.T, upon v1.Image) string {
	t.Helper()
	payload := tarOf(t, "usr/install/amd64/vmlinuz.efi="+rand.Text(), "overlay/extra-options={}")
	return f.saved(t, must(mutate.AppendLayers(upon, must(tarball.LayerFromOpener(payload.Uncompressed))(t)))(t))
}

func (f *foundry) saved(t *testing.T, img v1.Image) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "installer-amd64.tar")
	noError(t, tarball.WriteToFile(file, must(name.ParseReference(f.base))(t), img))
	return file
}

// over writes an image based on the base, with one more layer over the imager's.
func (f *foundry) over(t *testing.T, file string) string {
	t.Helper()
	return f.saved(t, must(mutate.AppendLayers(f.img, tarOf(t, "usr/install/amd64/vmlinuz.efi=UKI"), tarOf(t, file)))(t))
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
	digest := must(f.PushArchive(t.Context(), p))(t)
	index := must(remote.Index(f.mirror.Digest(digest)))(t)
	noError(t, validate.Index(index))
	m := must(index.IndexManifest())(t)
	if len(m.Manifests) != 1 || m.Manifests[0].Platform.Architecture != "amd64" {
		t.Errorf("manifests: %+v", m.Manifests)
	}
	if told < 1000 {
		t.Errorf("progress up to %d bytes", told)
	}
	if tags := must(remote.List(f.mirror))(t); len(tags) > 0 {
		t.Errorf("tags %q were set", tags)
	}
	f.to.set(nil)
	if again, err := f.PushArchive(t.Context(), p); err != nil || again != digest {
		t.Errorf("again: %s, %v", again, err)
	}
	for _, r := range f.to.asked(http.MethodPost) {
		t.Errorf("sent again: %s", r)
	}
}

func TestPushArchiveRefuses(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	good := f.save(t, f.img)
	whole := must(os.ReadFile(good))(t)
	type row struct {
		file string
		arch string
		want string
	}
	each(t, map[string]row{
		"another architecture": {good, "arm64", `the image is for "amd64", not for arm64`},
		"another base":         {f.save(t, forArch(t, must(random.Image(256, 1))(t), "amd64")), "amd64", "layer 0 is "},
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
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("err = %v, want %q", err, c.want)
		}
	})
	if posts := f.to.asked(http.MethodPost); len(posts) > 0 {
		t.Errorf("something was sent: %q", posts)
	}
}

func TestBuiltUpon(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	digest := must(f.PushArchive(t.Context(), f.push(f.save(t, f.img))))(t)
	ref := f.mirror.Digest(digest).String()
	noError(t, f.BuiltUpon(t.Context(), ref, f.base, "amd64"))
	if err := f.BuiltUpon(t.Context(), f.base, f.base, "arm64"); fault.KindOf(err) != fault.Refused {
		t.Errorf("without an added layer: %v", err)
	}
	if err := f.BuiltUpon(t.Context(), ref, f.source.String(), "amd64"); err == nil {
		t.Error("another base passes")
	}
	if err := f.BuiltUpon(t.Context(), "ghcr.io/acme/talos:v1", f.base, "amd64"); fault.KindOf(err) != fault.Config {
		t.Errorf("a tag: %v", err)
	}
}

func write(t *testing.T, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	noError(t, os.WriteFile(file, content, 0o600))
	return file
}

// The imager takes the image for its architecture from a layout by the platform in its index.
func TestSaveLayout(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	dir := filepath.Join(t.TempDir(), "base")
	noError(t, f.SaveLayout(t.Context(), f.base, "amd64", dir))
	index := must(must(layout.FromPath(dir))(t).ImageIndex())(t)
	noError(t, validate.Index(index))
	m := must(index.IndexManifest())(t)
	if len(m.Manifests) != 1 || m.Manifests[0].Platform.Architecture != "amd64" || m.Manifests[0].Digest != must(f.img.Digest())(t) {
		t.Errorf("manifests: %+v", m.Manifests)
	}
	if err := f.SaveLayout(t.Context(), f.base, "riscv64", t.TempDir()); err == nil || !strings.Contains(err.Error(), "amd64, arm64") {
		t.Errorf("err = %v", err)
	}
}

// isoOf is a boot ISO of some bytes.
func isoOf(t *testing.T, content []byte) (schematics.BootFile, string) {
	t.Helper()
	sum, n := must2(v1.SHA256(bytes.NewReader(content)))(t)
	return schematics.BootFile{Name: "recast-v1.13.9-abc-nocloud-amd64.iso", SHA256: sum.Hex, SizeBytes: n}, write(t, content)
}

func must2[A, B any](a A, b B, err error) func(*testing.T) (A, B) {
	return func(t *testing.T) (A, B) {
		t.Helper()
		noError(t, err)
		return a, b
	}
}

func TestFilesBesideAnInstaller(t *testing.T) {
	t.Parallel()
	each(t, map[string][]ggcr.Option{
		"with the referrers API":    {ggcr.WithReferrersSupport(true)},
		"with the tag in its place": nil,
	}, func(t *testing.T, o []ggcr.Option) {
		f := newFoundry(t, o...)
		digest := must(f.PushArchive(t.Context(), f.push(f.save(t, f.img))))(t)
		installer := f.mirror.Digest(digest).String()
		if list, err := f.Attached(t.Context(), installer); err != nil || len(list) > 0 {
			t.Errorf("beside it initially: %v, %v", list, err)
		}
		iso, isoFile := isoOf(t, bytes.Repeat([]byte("ISO"), 10_000))
		disk, diskFile := isoOf(t, bytes.Repeat([]byte("disk"), 10_000))
		disk.Name = "recast-v1.13.9-abc-nocloud-amd64.qcow2"
		attach := func() {
			noError(t, errors.Join(f.Attach(t.Context(), installer, isoFile, images.BootISO, iso, nil), f.Attach(t.Context(), installer, diskFile, images.DiskImage, disk, nil)))
		}
		attach()
		list, err := f.Attached(t.Context(), installer)
		slices.SortFunc(list, func(a, b schematics.BootFile) int { return strings.Compare(a.Name, b.Name) })
		if d := cmp.Diff([]schematics.BootFile{iso, disk}, list); err != nil || d != "" {
			t.Fatalf("%v, beside it (-want +got):\n%s", err, d)
		}
		body := must(f.AttachedFile(t.Context(), installer, disk))(t)
		defer body.Close()
		if got := must(io.ReadAll(body))(t); !bytes.Equal(got, must(os.ReadFile(diskFile))(t)) {
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
	digest := must(f.PushArchive(t.Context(), f.push(f.save(t, f.img))))(t)
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
	digest := must(f.PushArchive(t.Context(), p))(t)
	iso, file := isoOf(t, []byte("the ISO"))
	from := p.Repository + "@" + digest
	noError(t, errors.Join(f.Attach(t.Context(), from, file, images.BootISO, iso, nil), f.Copy(t.Context(), from, f.mirror.String(), nil)))
	list, err := f.Attached(t.Context(), f.mirror.Digest(digest).String())
	if d := cmp.Diff([]schematics.BootFile{iso}, list); err != nil || d != "" {
		t.Errorf("%v, beside the copy (-want +got):\n%s", err, d)
	}
}

func TestArchivesNeedDigests(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	p := f.push("file")
	p.Base = "ghcr.io/siderolabs/installer-base:v1.13.9"
	_, errPush := f.PushArchive(t.Context(), p)
	_, errList := f.Attached(t.Context(), "ghcr.io/acme/talos:v1")
	_, errISO := f.AttachedFile(t.Context(), "ghcr.io/acme/talos:v1", schematics.BootFile{})
	for what, err := range map[string]error{
		"push": errPush, "list": errList, "ISO": errISO,
		"save":   f.SaveLayout(t.Context(), "ghcr.io/siderolabs/installer-base:v1.13.9", "amd64", t.TempDir()),
		"attach": f.Attach(t.Context(), "ghcr.io/acme/talos:v1", "file", images.BootISO, schematics.BootFile{}, nil),
	} {
		if fault.KindOf(err) != fault.Config {
			t.Errorf("%s: err = %v", what, err)
		}
	}
}
