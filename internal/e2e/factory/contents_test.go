package factory

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/pe"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// built is the SHA-256 of an installer's file at a path of a node, extracted with the
// programs that made it, not with recast.
func built(t *testing.T, ref, install, path string) string {
	t.Helper()
	dir := t.TempDir()
	added := filepath.Join(dir, "added.zst")
	write(t, added, appended(t, kernelImage(t, ref), filepath.Join(install, "amd64/initramfs.xz")))
	run(t, dir, "", "zstd", "-d", "--quiet", added, "-o", "added.cpio")
	run(t, dir, "", "cpio", "-i", "--quiet", "-d", "-F", "added.cpio")
	images := must(filepath.Glob(filepath.Join(dir, "*.sqsh")))(t)
	for _, image := range images {
		content, err := exec.CommandContext(t.Context(), "unsquashfs", "-cat", image, path).Output()
		if err == nil && len(content) > 0 {
			return checksum(content)
		}
	}
	t.Fatalf("%s holds no %s", ref, path)
	return ""
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// kernelImage is the unified kernel image in an installer for amd64.
func kernelImage(t *testing.T, ref string) []byte {
	t.Helper()
	r := must(name.ParseReference(ref))(t)
	img := must(remote.Image(r, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}), remote.WithContext(t.Context())))(t)
	files := mutate.Extract(img)
	defer files.Close()
	for archive := tar.NewReader(files); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("%s holds no kernel", ref)
		}
		mustDo(t, err)
		if h.Name == "usr/install/amd64/vmlinuz.efi" {
			return must(io.ReadAll(archive))(t)
		}
	}
}

// appended is what imager has appended to Talos' own initramfs.
func appended(t *testing.T, uki []byte, initramfs string) []byte {
	t.Helper()
	f := must(pe.NewFile(bytes.NewReader(uki)))(t)
	section := f.Section(".initrd")
	if section == nil {
		t.Fatal("no .initrd")
	}
	b := must(section.Data())(t)
	own := must(os.ReadFile(initramfs))(t)
	_, rest, found := bytes.Cut(b[:section.VirtualSize], own)
	if !found {
		t.Fatal("the installer has another initramfs than Talos")
	}
	return rest
}
