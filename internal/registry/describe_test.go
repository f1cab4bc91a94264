package registry

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

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
	each(t, map[string]row{
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
		ref := must(name.NewDigest(host + "/acme/frr@sha256:" + strings.Repeat("0", 64)))(t)
		if tc.layers != nil {
			ref = pushFor(t, s, tc.arch, tc.layers...)
		}
		got, err := client(t, s).Describe(t.Context(), ref.String(), tc.ask)
		same(t, "image", tc.want, got)
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
	tag := must(name.NewTag(host + "/acme/frr:1"))(t)
	if len(arch) == 1 {
		img := imageOf(t, arch[0], layers...)
		push(t, to, tag.String(), img)
		return tag.Context().Digest(must(img.Digest())(t).String())
	}
	index := v1.ImageIndex(empty.Index)
	for _, a := range arch {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: imageOf(t, a, layers...), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: a}},
		})
	}
	noError(t, remote.WriteIndex(tag, index, remote.WithTransport(to), remote.WithContext(t.Context())))
	return tag.Context().Digest(must(index.Digest())(t).String())
}

// TestDescribeReadsTheTopOnly: an extension's content is not fetched for its name.
func TestDescribeReadsTheTopOnly(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	below, top := tarOf(t, "rootfs/usr/bin/frr=x"), tarOf(t, frrManifest)
	img := imageOf(t, "amd64", below, top)
	push(t, http.DefaultTransport, c.from.host+"/acme/frr:1", img)
	c.from.set(nil)
	ref := c.from.host + "/acme/frr@" + must(img.Digest())(t).String()
	if _, err := c.Describe(t.Context(), ref, "amd64"); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{must(top.Digest())(t).String(): true, must(below.Digest())(t).String(): false}
	got := map[string]bool{}
	for digest := range want {
		got[digest] = strings.Contains(strings.Join(c.from.asked("GET"), " "), digest)
	}
	same(t, "fetched", want, got)
}

func TestNearby(t *testing.T) {
	t.Parallel()
	digest := "@sha256:" + strings.Repeat("1", 64)
	type row struct{ extensions, ref, want string }
	each(t, map[string]row{
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
		c := must(New(Options{Extensions: tc.extensions}))(t)
		if got := c.relocate(must(name.ParseReference(tc.ref))(t)).String(); got != tc.want {
			t.Errorf("got %s, want %s", got, tc.want)
		}
	})
}
