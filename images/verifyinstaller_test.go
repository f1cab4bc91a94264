package images

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/schematics"
)

// oneImage is a registry of one image.
type oneImage struct {
	ref   string
	files map[string][]byte
}

func (o oneImage) Extract(_ context.Context, ref, _ string) (io.ReadCloser, error) {
	if ref != o.ref {
		return nil, errors.New("no such image: " + ref)
	}
	return tarOf(o.files), nil
}

func (o oneImage) Signatures(context.Context, string) ([]Signature, error) { return nil, nil }

func TestOverlay(t *testing.T) {
	t.Parallel()
	overlay := schematics.Overlay{Name: "board", Ref: "ghcr.io/siderolabs/sbc", Digest: digest("overlay")}
	registry := oneImage{overlay.Ref + "@" + overlay.Digest, map[string][]byte{
		"artifacts/arm64/u-boot.bin": []byte("u-boot"), "installers/board": []byte("installer"), "installers/other": []byte("other"),
		"profiles/board.yaml": []byte("{}"),
	}}
	whole := map[string][]byte{
		"bin/installer": nil, "usr/install/amd64/vmlinuz.efi": []byte("uki"), "usr/install/amd64/systemd-boot.efi": nil,
		"overlay/artifacts/arm64/u-boot.bin": []byte("u-boot"), "overlay/installers/default": []byte("installer"), "overlay/extra-options": []byte("{}"),
	}
	another := "installer: the overlay in it is another one, locked is board (" + overlay.Digest + "): 1 file differs: "
	for name, tc := range map[string]struct {
		spoil func(files map[string][]byte)
		want  string
	}{
		"the locked one": {func(map[string][]byte) {}, ""},
		"another program": {
			func(f map[string][]byte) { f["overlay/installers/default"] = []byte("backdoor") }, another + "overlay/installers/default has 8 bytes",
		},
		"an artefact missing": {
			func(f map[string][]byte) { delete(f, "overlay/artifacts/arm64/u-boot.bin") }, another + "overlay/artifacts/arm64/u-boot.bin is missing",
		},
		"an artefact added": {
			func(f map[string][]byte) { f["overlay/artifacts/x"] = nil }, another + "overlay/artifacts/x is not in the locked one",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string][]byte{}
			for path, data := range whole {
				files[path] = data
			}
			tc.spoil(files)
			held, err := unpackInstaller("amd64", tarOf(files), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			v := NewVerifier(registry, t.TempDir())
			mismatches, err := v.beside(t.Context(), schematics.Lock{Arch: "amd64"}, schematics.Locked{Overlay: &overlay}, held)
			if err != nil {
				t.Fatal(err)
			}
			got := message(errors.Join(mismatches...))
			if !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" {
				t.Errorf("(-want +got):\n%s", cmp.Diff(tc.want, got))
			}
			if tc.want != "" {
				t.Attr("corruptions-caught", "1")
			}
		})
	}
}
