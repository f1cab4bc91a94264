package qcow2_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/qcow2"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
)

const (
	cluster = 8 << 10
	sector  = 512
)

// disk is a disk with text, noise and long holes, of several tables.
func disk() []byte {
	b := make([]byte, 20<<20+sector)
	noise := rand.NewChaCha8([32]byte{1})
	_, _ = noise.Read(b[:3*cluster]) // never fails
	copy(b[9<<20:], strings.Repeat("recast ", 10_000))
	_, _ = noise.Read(b[len(b)-sector:])
	return b
}

// made is a qcow2 file of a disk.
func made(t testing.TB, disk []byte, by artefact.Compression) []byte {
	t.Helper()
	return must.Get(artefact.QCOW2(disk, by))(t)
}

func open(b []byte) (*qcow2.Disk, error) { return qcow2.Open(bytes.NewReader(b), int64(len(b))) }

// version2 makes a file one of the older version: its header ends before the features.
func version2(b []byte) []byte {
	b = slices.Clone(b)
	binary.BigEndian.PutUint32(b[4:], 2)
	clear(b[72:cluster])
	return b
}

func TestRead(t *testing.T) {
	t.Parallel()
	want := disk()
	tests := map[string][]byte{
		"as it is":             made(t, want, artefact.Plain),
		"zlib":                 made(t, want, artefact.Zlib),
		"zstd":                 made(t, want, artefact.Zstd),
		"version 2":            version2(made(t, want, artefact.Plain)),
		"version 2, with zlib": version2(made(t, want, artefact.Zlib)),
	}
	for name, b := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := must.Get(open(b))(t)
			if d.Size() != int64(len(want)) {
				t.Fatalf("a disk of %d bytes, want %d", d.Size(), len(want))
			}
			got, err := io.ReadAll(io.NewSectionReader(d, 0, d.Size()))
			must.Be(t, err == nil && bytes.Equal(got, want), "another content, err = %v", err)
			odd := make([]byte, 3*cluster+7) // across clusters, from within one
			if _, err := d.ReadAt(odd, 9<<20-100); err != nil || !bytes.Equal(odd, want[9<<20-100:][:len(odd)]) {
				t.Errorf("another content across clusters, err = %v", err)
			}
			if n, err := d.ReadAt(odd, d.Size()-10); n != 10 || !errors.Is(err, io.EOF) {
				t.Errorf("at the end: %d bytes, err = %v", n, err)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	plain, packed := made(t, disk(), artefact.Plain), made(t, disk(), artefact.Zlib)
	set := func(b []byte, at int, value ...byte) []byte {
		b = slices.Clone(b)
		copy(b[at:], value)
		return b
	}
	first := int(binary.BigEndian.Uint64(plain[40:]))
	table := int(binary.BigEndian.Uint64(plain[first:]) & 0x00fffffffffffe00)
	tests := map[string]struct {
		b    []byte
		want string
	}{
		"nothing":                {nil, "qcow2 header: unexpected EOF"},
		"a raw disk":             {disk(), "no qcow2 file"},
		"version 1":              {set(plain, 7, 1), "qcow2 of version 1; 2 and 3 are known"},
		"a backing file":         {set(plain, 15, 1), "it has a backing file"},
		"clusters of 2 GiB":      {set(plain, 23, 31), "clusters of 2^31 bytes"},
		"an empty disk":          {set(plain, 24, make([]byte, 8)...), "a disk of 0 bytes"},
		"a disk of exabytes":     {set(plain, 24, 0x10), "a disk of"},
		"encryption":             {set(plain, 35, 1), "it is encrypted"},
		"a small first table":    {set(plain, 36, 0, 0, 0, 1), "its first table has 1 entries, the disk needs 3"},
		"a first table nowhere":  {set(plain, 40, 0, 1), "it is cut short: the first table is at"},
		"snapshots":              {set(plain, 63, 1), "it has snapshots"},
		"not closed":             {set(plain, 79, 1), "it was not closed properly"},
		"corrupt":                {set(plain, 79, 2), "it is marked as corrupt"},
		"data in another file":   {set(plain, 79, 4), "its data is in another file"},
		"subclusters":            {set(plain, 79, 16), "it has subclusters"},
		"an unknown feature":     {set(plain, 79, 32), "it has features that are not known: 0x20"},
		"a short header":         {set(plain, 103, 72), "a qcow2 header of 72 bytes"},
		"unknown compression":    {set(set(plain, 79, 8), 104, 2), "compression of type 2; zlib and zstd are known"},
		"a table nowhere":        {set(plain, first, 0x80, 1), "it is cut short: a table of clusters is at"},
		"a cluster nowhere":      {set(plain, table, 0x80, 1), "it is cut short: a cluster is at"},
		"a cluster out of place": {set(plain, table+6, 0x22), "which is within another"},
		"no reference counts":    {set(plain, 48, 1), "it is cut short: the table of reference counts is at"},
		"cut by a sector":        {plain[:len(plain)-sector], "it is cut short: a block of reference counts is at"},
		"compressed, and cut":    {packed[:len(packed)-sector], "it is cut short"},
		"cut in the middle":      {plain[:len(plain)/2], "it is cut short"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := open(test.b)
			must.Hold(t, errors.Is(err, qcow2.ErrFormat) && strings.Contains(err.Error(), test.want),
				"err = %v, want %q", err, test.want)
		})
	}
}

// TestDamagedCluster: packed data that does not unpack is refused where it is read.
func TestDamagedCluster(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]artefact.Compression{"zlib": artefact.Zlib, "zstd": artefact.Zstd} {
		b := made(t, []byte(strings.Repeat("recast ", 10_000)), by)
		first := int(binary.BigEndian.Uint64(b[40:]))
		table := int(binary.BigEndian.Uint64(b[first:]) & 0x00fffffffffffe00)
		at := int(binary.BigEndian.Uint64(b[table:]) & (1<<57 - 1))
		for i := range 8 {
			b[at+i] ^= 0x5a
		}
		d := must.Get(open(b))(t)
		if _, err := d.ReadAt(make([]byte, 10), 0); !errors.Is(err, qcow2.ErrFormat) || !strings.Contains(err.Error(), "cluster 0 of the disk") {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

// brokenAt fails at one place, as a disk does.
type brokenAt struct {
	io.ReaderAt
	at int64
}

var errDisk = errors.New("input/output error")

func (b brokenAt) ReadAt(p []byte, off int64) (int, error) {
	if off <= b.at && b.at < off+int64(len(p)) {
		return 0, errDisk
	}
	return b.ReaderAt.ReadAt(p, off)
}

// TestUnreadable: the bytes are not to blame for an error of the disk they are on.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	b := made(t, disk(), artefact.Plain)
	for _, at := range []int64{0, 100, int64(binary.BigEndian.Uint64(b[40:])), int64(binary.BigEndian.Uint64(b[48:]))} {
		if _, err := qcow2.Open(brokenAt{bytes.NewReader(b), at}, int64(len(b))); !errors.Is(err, errDisk) || errors.Is(err, qcow2.ErrFormat) {
			t.Errorf("at %d: err = %v", at, err)
		}
	}
}

// FuzzOpen changes the header, a table and the first bytes of a cluster: it is a disk that can be read, or ErrFormat.
func FuzzOpen(f *testing.F) {
	files := map[artefact.Compression][]byte{}
	for _, by := range []artefact.Compression{artefact.Plain, artefact.Zlib, artefact.Zstd} {
		b := made(f, disk()[:5*cluster], by)
		files[by] = b
		first := int(binary.BigEndian.Uint64(b[40:]))
		table := int(binary.BigEndian.Uint64(b[first:]) & 0x00fffffffffffe00)
		f.Add(uint8(by), b[:112], b[first:first+16], b[table:table+40], uint16(table))
	}
	f.Fuzz(func(t *testing.T, by uint8, header, first, table []byte, at uint16) {
		b := slices.Clone(files[artefact.Compression(by%3)])
		copy(b, header)
		copy(b[cluster:], first)
		copy(b[min(len(b), int(at)):], table)
		d, err := open(b)
		if err == nil {
			_, err = io.Copy(io.Discard, io.NewSectionReader(d, 0, min(d.Size(), 1<<20)))
		}
		must.Hold(t, err == nil || errors.Is(err, qcow2.ErrFormat), "err = %v", err)
	})
}
