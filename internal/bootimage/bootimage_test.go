package bootimage_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/must"
)

// goldens were made by the programs that imager calls: see make.sh there.
const goldens = "../../testdata/bootimages"

func golden(t testing.TB, name string) []byte {
	t.Helper()
	return must.Get(os.ReadFile(filepath.Join(goldens, name)))(t)
}

func goldenISO(t testing.TB, name string) []byte {
	t.Helper()
	d := must.Get(zstd.NewReader(nil))(t)
	defer d.Close()
	return must.Get(d.DecodeAll(golden(t, name+".iso.zst"), nil))(t)
}

func file(mode fs.FileMode, content string) bootimage.File {
	sum := sha256.Sum256([]byte(content))
	return bootimage.File{Mode: mode, SizeBytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
}

func link(target string) bootimage.File {
	return bootimage.File{Mode: fs.ModeSymlink | 0o777, Link: target}
}

func wantTools() bootimage.Tree {
	tree := bootimage.Tree{
		"/usr/local/bin/tool":     file(0o755|fs.ModeSetuid, "tool\n"),
		"/usr/local/bin/hardlink": file(0o755|fs.ModeSetuid, "tool\n"),
		"/usr/local/lib/symlink":  link("../bin/tool"),
		"/usr/local/lib/large":    file(0o644, strings.Repeat("a line of a large file\n", 20000)[:400000]),
		"/usr/local/lib/hole":     file(0o644, strings.Repeat("\x00", 300000)+"end\n"),
		"/usr/local/share/none":   file(0o644, ""),
	}
	for n := range 300 {
		tree[fmt.Sprintf("/usr/local/lib/many/a-file-with-a-rather-long-name-%d", n+1)] = file(0o644, fmt.Sprintf("%d\n", n+1))
	}
	return tree
}

// wantInitrd is the content of all initramfs files of goldens, except Talos' own part.
func wantInitrd() bootimage.Initrd {
	return bootimage.Initrd{
		Extensions: []bootimage.Extension{
			{
				Image: "0.sqsh", Name: "tools", Version: "v1.0.0", Author: "Somebody", Description: "Several lines.\n", Files: wantTools(),
			},
			{
				Image: "1.sqsh", Name: "schematic", Version: "ce4c", Author: "Image Factory (http://127.0.0.1)",
				Description: "Virtual extension which specifies the schematic of the image built with Image Factory.",
				ExtraInfo:   "customization: {}\n",
				Files:       bootimage.Tree{"/usr/local/share/schematic/ce4c": file(0o644, "")},
			},
		},
		Loose: bootimage.Tree{
			"/kernel/x86/microcode/GenuineIntel.bin": file(0o644, "microcode\n"),
			"/usr/lib/firmware/i915/dmc.bin":         file(0o644, "firmware\n"),
			"/usr/lib/firmware/i915/same.bin":        file(0o644, "firmware\n"),
			"/usr/lib/firmware/i915/link.bin":        link("dmc.bin"),
		},
	}
}

// baseSum is the SHA-256 of Talos' own part, from sha256sum.
func baseSum(t *testing.T, name string) string {
	t.Helper()
	for line := range strings.Lines(string(golden(t, "base.sha256"))) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == name {
			return f[0]
		}
	}
	t.Fatalf("no checksum of %s", name)
	return ""
}

func TestReadInitrd(t *testing.T) {
	t.Parallel()
	for name, base := range map[string]string{"initramfs.zst": "base.zst", "initramfs.xz": "base.xz", "initramfs.gz": "base.zst"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := golden(t, name)
			scratch := t.TempDir()
			got := must.Get(bootimage.ReadInitrd(bytes.NewReader(b), scratch))(t)
			want := wantInitrd()
			want.BaseSHA256 = baseSum(t, base)
			must.Equal(t, "initramfs", want, got)
			if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
				t.Errorf("temporary files are left: %v, %v", left, err)
			}
		})
	}
}

func TestOpenISO(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ uki, grub bool }{
		"uefi": {uki: true}, "grub": {grub: true}, "hybrid": {uki: true, grub: true},
	}
	const cmdline = "talos.platform=metal console=ttyS0 quote=$x{y}"
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := goldenISO(t, name)
			iso := must.Get(bootimage.OpenISO(bytes.NewReader(b), int64(len(b))))(t)
			if got := (iso.UKI != nil); got != tt.uki {
				t.Fatalf("UKI = %v", iso.UKI)
			}
			if got := (iso.GRUB != nil); got != tt.grub {
				t.Fatalf("GRUB = %v", iso.GRUB)
			}
			if iso.UKI != nil {
				got := bootimage.UKI{Arch: iso.UKI.Arch, Talos: iso.UKI.Talos, Uname: iso.UKI.Uname, Cmdline: iso.UKI.Cmdline}
				want := bootimage.UKI{Arch: "amd64", Talos: "v1.13.9", Uname: "6.18.0-talos", Cmdline: cmdline}
				must.Equal(t, "UKI", want, got)
				requireSame(t, "kernel", iso.UKI.Kernel, []byte("kernel of Linux\n"))
				requireSame(t, "initrd", iso.UKI.Initrd, golden(t, "initramfs.zst"))
			}
			if iso.GRUB != nil {
				must.Equal(t, "command line", cmdline, iso.GRUB.Cmdline)
				requireSame(t, "GRUB's kernel", iso.GRUB.Kernel, []byte("kernel of Linux\n"))
				requireSame(t, "GRUB's initrd", iso.GRUB.Initrd, golden(t, "initramfs.zst"))
			}
		})
	}
}

func requireSame(t *testing.T, what string, r io.Reader, want []byte) {
	t.Helper()
	got := must.Get(io.ReadAll(r))(t)
	must.Hold(t, bytes.Equal(got, want), "%s: %d bytes, not the %d expected", what, len(got), len(want))
}

// entry is an entry of a cpio archive.
type entry struct {
	name, content string
	mode          int // a regular file's if 0
	links         int // 1 if 0
	inode         int // of hard links
}

const trailer = "TRAILER!!!"

// cpio packs entries in the newc format, followed by a trailer.
func cpio(entries ...entry) []byte {
	var b []byte
	pad := func() { b = append(b, make([]byte, -len(b)&3)...) }
	for n, e := range append(entries, entry{name: trailer, mode: -1}) {
		switch e.mode {
		case 0:
			e.mode = 0o100644
		case -1:
			e.mode = 0
		}
		if e.inode == 0 {
			e.inode = 100 + n
		}
		b = fmt.Appendf(b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
			e.inode, e.mode, 0, 0, max(e.links, 1), 0, len(e.content), 0, 0, 0, 0, len(e.name)+1, 0, e.name)
		pad()
		b = append(b, e.content...)
		pad()
	}
	return b
}

// packed is one zstd frame.
func packed(t testing.TB, b []byte) []byte {
	t.Helper()
	w := must.Get(zstd.NewWriter(nil))(t)
	return w.EncodeAll(b, nil)
}

func unpacked(t testing.TB, b []byte) []byte {
	t.Helper()
	d := must.Get(zstd.NewReader(nil))(t)
	defer d.Close()
	return must.Get(d.DecodeAll(b, nil))(t)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

type section struct {
	name, content string
	virtualSize   int // that of the content if 0
	at            int // in memory; after the others if 0
}

// portable is a PE32+ file with these sections.
func portable(t testing.TB, machine uint16, sections ...section) []byte {
	t.Helper()
	const header = 4096
	var out, content bytes.Buffer
	head := make([]byte, 0x80)
	copy(head, "MZ")
	head[0x3c] = 0x80
	out.Write(head)
	out.WriteString("PE\x00\x00")
	write := func(v any) {
		must.Do(t, binary.Write(&out, binary.LittleEndian, v))
	}
	write(pe.FileHeader{Machine: machine, NumberOfSections: uint16(len(sections)), SizeOfOptionalHeader: 240})
	write(pe.OptionalHeader64{Magic: 0x20b, NumberOfRvaAndSizes: 16})
	for _, s := range sections {
		h := pe.SectionHeader32{
			VirtualSize: uint32(len(s.content)), SizeOfRawData: uint32(len(s.content)+511) &^ 511,
			PointerToRawData: uint32(header + content.Len()), VirtualAddress: uint32(header + content.Len()),
		}
		if s.virtualSize != 0 {
			h.VirtualSize = uint32(s.virtualSize)
		}
		if s.at != 0 {
			h.VirtualAddress = uint32(s.at)
		}
		copy(h.Name[:], s.name)
		write(h)
		content.WriteString(s.content)
		content.Write(make([]byte, -len(s.content)&511))
	}
	out.Write(make([]byte, header-out.Len()))
	return append(out.Bytes(), content.Bytes()...)
}

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
	must.Hold(t, err == nil || errors.Is(err, bootimage.ErrFormat), "err = %v", err)
}

func readWhole(t *testing.T, r io.Reader) {
	t.Helper()
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Errorf("read what was opened: %v", err)
	}
}

const (
	largeBaseBytes  = 80 << 20
	largeImageBytes = 220 << 20
	largeBlockBytes = 128 << 10
	maxHeapMiB      = 128
)

// BenchmarkReadInitrd reads an initramfs of 300 MiB with an extension of one large file.
func BenchmarkReadInitrd(b *testing.B) {
	path := largeInitrd(b)
	b.SetBytes(largeBaseBytes + largeImageBytes)
	var peak float64
	for b.Loop() {
		peak = max(peak, readLarge(b, path))
	}
	b.ReportMetric(peak, "peak-heap-MiB")
}

// TestReadInitrdMemory: the content is not kept in memory.
func TestReadInitrdMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("long: makes and reads 300 MiB")
	}
	peak := readLarge(t, largeInitrd(t))
	must.Hold(t, peak <= maxHeapMiB, "the heap had %.0f MiB", peak)
}

// readLarge reads the initramfs from the file and returns the peak heap size, in MiB.
func readLarge(t testing.TB, path string) float64 {
	t.Helper()
	f := must.Get(os.Open(path))(t)
	defer f.Close()
	var got bootimage.Initrd
	peak := heap.Peak(t.Context(), func() { got = must.Get(bootimage.ReadInitrd(f, t.TempDir()))(t) })
	if large := got.Extensions[0].Files["/large"]; large.SizeBytes != largeImageBytes {
		t.Fatalf("files = %v", got.Extensions[0].Files)
	}
	return float64(peak) / (1 << 20)
}

// largeInitrd writes an incompressible initramfs without keeping it in memory.
func largeInitrd(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "initramfs.xz")
	f := must.Get(os.Create(path))(t)
	noise := rand.NewChaCha8([32]byte{})
	image := largeSquashfs()
	size := len(image.head) + largeImageBytes + len(image.tail)
	err := errors.Join(
		frame(f, func(w io.Writer) error {
			return writeCPIO(w, "rootfs", largeBaseBytes, io.LimitReader(noise, largeBaseBytes))
		}),
		frame(f, func(w io.Writer) error {
			if err := writeCPIO(w, "0.sqsh", size, io.MultiReader(bytes.NewReader(image.head), io.LimitReader(noise, largeImageBytes), bytes.NewReader(image.tail))); err != nil {
				return err
			}
			_, err := w.Write(cpio(entry{name: "extensions.yaml", content: oneLayer}))
			return err
		}),
		f.Close(),
	)
	must.Do(t, err)
	return path
}

// frame writes one zstd frame.
func frame(w io.Writer, write func(io.Writer) error) error {
	buffered := bufio.NewWriter(w)
	z, err := zstd.NewWriter(buffered, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	return errors.Join(write(z), z.Close(), buffered.Flush())
}

// writeCPIO writes an archive with one large file; another may follow.
func writeCPIO(w io.Writer, name string, size int, content io.Reader) error {
	head := fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		1, 0o100644, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	if _, err := w.Write(append(head, make([]byte, -len(head)&3)...)); err != nil {
		return err
	}
	if _, err := io.Copy(w, content); err != nil {
		return err
	}
	_, err := w.Write(append(make([]byte, -size&3), cpio()...))
	return err
}

// squashfsParts is a squashfs around the content of its only file, /large.
type squashfsParts struct{ head, tail []byte }

func largeSquashfs() squashfsParts {
	le := binary.LittleEndian
	const raw, rawData = 1 << 15, 1 << 24
	meta := func(b []byte) []byte {
		var out []byte
		for len(b) > 0 {
			n := min(len(b), 8192)
			out = append(le.AppendUint16(out, uint16(n)|raw), b[:n]...)
			b = b[n:]
		}
		return out
	}
	// The directory's inode comes first, so that its position is known: 32 bytes, then the file's.
	inodes := le.AppendUint16(nil, 1)
	inodes = le.AppendUint16(inodes, 0o755)
	inodes = append(inodes, make([]byte, 8)...)
	for _, v := range []uint32{2, 0, 2, 3 + 12 + 8 + 5, 3} { // number, start, links, size with offset 0, parent
		inodes = le.AppendUint32(inodes, v)
	}
	inodes = le.AppendUint16(inodes, 2)
	inodes = le.AppendUint16(inodes, 0o644)
	inodes = append(inodes, make([]byte, 8)...)
	for _, v := range []uint32{1, 96, 0xffffffff, 0, largeImageBytes} {
		inodes = le.AppendUint32(inodes, v)
	}
	for range largeImageBytes / largeBlockBytes {
		inodes = le.AppendUint32(inodes, largeBlockBytes|rawData)
	}
	var listing []byte
	for _, v := range []uint32{0, 0, 1} {
		listing = le.AppendUint32(listing, v)
	}
	for _, v := range []uint16{32, 0, 2, 4} {
		listing = le.AppendUint16(listing, v)
	}
	listing = append(listing, "large"...)
	inodeTable := 96 + largeImageBytes
	tail := meta(inodes)
	dirTable := inodeTable + len(tail)
	tail = append(tail, meta(listing)...)
	head := make([]byte, 0, 96)
	for _, v := range []uint32{0x73717368, 2, 0, largeBlockBytes, 0} {
		head = le.AppendUint32(head, v)
	}
	for _, v := range []uint16{6, 17, 0x1b, 1, 4, 0} {
		head = le.AppendUint16(head, v)
	}
	none := ^uint64(0)
	for _, v := range []uint64{0, uint64(96 + largeImageBytes + len(tail)), none, none, uint64(inodeTable), uint64(dirTable), none, none} {
		head = le.AppendUint64(head, v)
	}
	return squashfsParts{head: head, tail: tail}
}
