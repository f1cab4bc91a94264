package bootimage_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/recast-sh/recast/internal/bootimage"
)

// The readers turn any bytes into a result, or ErrFormat.

func FuzzReadInitrd(f *testing.F) {
	for _, name := range []string{"initramfs.zst", "initramfs.xz", "initramfs.gz"} {
		f.Add(golden(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := bootimage.ReadInitrd(bytes.NewReader(b), t.TempDir())
		requireFormat(t, err)
	})
}

// FuzzSquashfs and FuzzCPIO change what a compressed archive's checksum protects from FuzzReadInitrd.
func FuzzSquashfs(f *testing.F) {
	for _, name := range []string{"selinux.sqsh", "capability.sqsh", "overlay.sqsh"} {
		f.Add(golden(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		base := packed(t, cpio(entry{name: "init"}))
		added := cpio(entry{name: "0.sqsh", content: string(b)}, entry{name: "extensions.yaml", content: oneLayer})
		_, err := bootimage.ReadInitrd(bytes.NewReader(join(base, make([]byte, -len(base)&3), added)), t.TempDir())
		requireFormat(t, err)
	})
}

func FuzzCPIO(f *testing.F) {
	f.Add(cpio(
		entry{name: "usr", mode: 0o40755}, entry{name: "usr/a", links: 2, inode: 1}, entry{name: "usr/b", links: 2, inode: 1, content: "x"},
		entry{name: "usr/c", mode: 0o120777, content: "a"}, entry{name: "extensions.yaml", content: "layers: []\n"},
	))
	f.Fuzz(func(t *testing.T, b []byte) {
		base := packed(t, cpio(entry{name: "init"}))
		_, err := bootimage.ReadInitrd(bytes.NewReader(join(base, make([]byte, -len(base)&3), b)), t.TempDir())
		requireFormat(t, err)
	})
}

func FuzzOpenUKI(f *testing.F) {
	f.Add(portable(f, 0x8664, sections()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := bootimage.OpenUKI(bytes.NewReader(b), int64(len(b)))
		requireFormat(t, err)
		if err == nil {
			readWhole(t, u.Kernel)
			readWhole(t, u.Initrd)
		}
	})
}

// FuzzOpenISO changes the non-empty parts of an ISO: its first sectors, and those of the partition.
func FuzzOpenISO(f *testing.F) {
	whole := goldenISO(f, "hybrid")
	const head = 40 * isoSector
	f.Add(whole[:head], uint32(len(whole)))
	grub := goldenISO(f, "grub")
	f.Add(grub, uint32(len(grub)))
	f.Fuzz(func(t *testing.T, b []byte, size uint32) {
		iso, err := bootimage.OpenISO(overlay{b, whole}, int64(size))
		requireFormat(t, err)
		if err == nil && iso.UKI != nil {
			readWhole(t, iso.UKI.Initrd)
			readWhole(t, iso.Loader)
		}
		if err == nil && iso.GRUB != nil {
			readWhole(t, iso.GRUB.Initrd)
		}
	})
}

// overlay replaces the beginning of a file.
type overlay struct{ first, rest []byte }

func (o overlay) ReadAt(p []byte, off int64) (int, error) {
	n, err := bytes.NewReader(o.rest).ReadAt(p, off)
	if off < int64(len(o.first)) {
		copy(p[:n], o.first[off:])
	}
	return n, err
}

func FuzzReadExtension(f *testing.F) {
	f.Add(tarred(f,
		tar.Header{Typeflag: tar.TypeReg, Name: "manifest.yaml", Linkname: manifest},
		tar.Header{Typeflag: tar.TypeReg, Name: "rootfs/usr/tool", Linkname: "tool"},
		tar.Header{Typeflag: tar.TypeLink, Name: "rootfs/usr/hard", Linkname: "rootfs/usr/tool"},
	))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := bootimage.ReadExtension(bytes.NewReader(b))
		requireFormat(t, err)
	})
}

func requireFormat(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, bootimage.ErrFormat) {
		t.Errorf("err = %v", err)
	}
}

func readWhole(t *testing.T, r io.Reader) {
	t.Helper()
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Errorf("read what was opened: %v", err)
	}
}
