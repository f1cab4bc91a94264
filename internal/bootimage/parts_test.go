package bootimage_test

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

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
	w := must(zstd.NewWriter(nil))(t)
	return w.EncodeAll(b, nil)
}

func unpacked(t testing.TB, b []byte) []byte {
	t.Helper()
	d := must(zstd.NewReader(nil))(t)
	defer d.Close()
	content := must(d.DecodeAll(b, nil))(t)
	return content
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
		noError(t, binary.Write(&out, binary.LittleEndian, v))
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

// must returns v, or ends the test with the error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		noError(t, err)
		return v
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares what came with what is wanted.
func same(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// each runs a test for every case, all at once.
func each[T any](t *testing.T, cases map[string]T, test func(t *testing.T, tc T)) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, tc)
		})
	}
}
