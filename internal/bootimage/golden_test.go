package bootimage_test

import (
	"bytes"
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/recast-sh/recast/internal/bootimage"
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
	if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes, not the %d expected", what, len(got), len(want))
	}
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
