package pipeline

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"

	"github.com/recast-sh/recast/images"
)

// fakePuller has one image for every reference.
type fakePuller struct {
	image  []byte
	end    error // instead of EOF
	pulled []string
}

func (f *fakePuller) Extract(_ context.Context, ref, arch string) (io.ReadCloser, error) {
	f.pulled = append(f.pulled, ref+" "+arch)
	end := f.end
	if end == nil {
		end = io.EOF
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(f.image), failing{end})), nil
}

func (*fakePuller) Signatures(context.Context, string) ([]images.Signature, error) { return nil, nil }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// extensionImage returns the flattened tar of an extension's image.
func extensionImage(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range map[string]string{
		"manifest.yaml":             "version: v1alpha1\nmetadata:\n  name: tool\n  version: v1\n  author: Acme\n  description: A tool.\n  compatibility:\n    talos:\n      version: \">= v1.0.0\"\n",
		"rootfs/usr/local/bin/tool": "tool",
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestLockedFiles: each image is read once, by digest.
func TestLockedFiles(t *testing.T) {
	t.Parallel()
	puller := &fakePuller{image: extensionImage(t)}
	locked := newLockedFiles(puller, func(string) {})
	build := cluster.Build{EmbedsConfig: true, Extensions: []cluster.LockedExtension{{Name: "tool", Version: "v1", Ref: "ghcr.io/acme/tool", Digest: "sha256:aa"}}}
	for range 2 {
		var target observe.FileTarget
		if err := locked.want(t.Context(), &target, "arm64", build); err != nil {
			t.Fatal(err)
		}
		want := observe.FileTarget{EmbedsConfig: true, Content: []observe.LockedFiles{{Extension: build.Extensions[0], Files: map[string]observe.LockedFile{
			"/usr/local/bin/tool": {Mode: 0o755, SizeBytes: 4, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte("tool")))},
		}}}}
		if diff := cmp.Diff(want, target, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("target (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff([]string{"ghcr.io/acme/tool@sha256:aa arm64"}, puller.pulled); diff != "" {
		t.Errorf("pulled (-want +got):\n%s", diff)
	}
}

// TestLockedFilesAreChecked: an image whose digest turns out to be wrong after its last
// file is refused.
func TestLockedFilesAreChecked(t *testing.T) {
	t.Parallel()
	wrong := errors.New("it has another digest")
	locked := newLockedFiles(&fakePuller{image: extensionImage(t), end: wrong}, func(string) {})
	err := locked.want(t.Context(), new(observe.FileTarget), "amd64", cluster.Build{Extensions: []cluster.LockedExtension{{Name: "tool"}}})
	if !errors.Is(err, wrong) || !strings.HasPrefix(err.Error(), "read the locked image of extension tool: ") {
		t.Errorf("err = %v", err)
	}
}

// TestDescribe: an unknown schematic is described without the values of its kernel
// arguments.
func TestDescribe(t *testing.T) {
	t.Parallel()
	got, ok := describe("customization:\n    extraKernelArgs:\n        - siderolink.api=grpc://x?jointoken=s3cret\n        - quiet\n    systemExtensions:\n        officialExtensions:\n            - siderolabs/gvisor\n")
	want := observe.Described{Extensions: []string{"siderolabs/gvisor"}, Args: []string{"siderolink.api", "quiet"}}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("ok = %v (-want +got):\n%s", ok, diff)
	}
	if got, ok := describe("customization: {unknown: 1}\n"); ok {
		t.Errorf("got %+v", got)
	}
}
