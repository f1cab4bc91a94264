package diskimage_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/diskimage"
	"github.com/recast-sh/recast/internal/qcow2"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
)

const (
	sector    = 512
	entries   = 2 * sector
	entry     = 128
	firstPart = 2048 * sector
	mib       = 1 << 20
)

func talos(t testing.TB) artefact.Image {
	t.Helper()
	return artefact.Image{
		TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", Cmdline: "talos.platform=nocloud console=ttyS0 recast.lock=sha256-1",
		SchematicID: strings.Repeat("a", 64), SchematicYAML: "customization: {}\n", SchematicAuthor: "Image Factory",
		Extensions: []artefact.Extension{{Name: "qemu-guest-agent", Version: "1.0", Files: map[string][]byte{"/usr/local/bin/qemu-ga": []byte("agent")}}},
	}
}

func image(t testing.TB, form artefact.DiskForm) []byte {
	t.Helper()
	b := must.Get(artefact.DiskImage(talos(t), form))(t)
	return b
}

// raw is the disk in a qcow2 file.
func raw(t testing.TB, b []byte) []byte {
	t.Helper()
	d := must.Get(qcow2.Open(bytes.NewReader(b), int64(len(b))))(t)
	disk := must.Get(io.ReadAll(io.NewSectionReader(d, 0, d.Size())))(t)
	return disk
}

func packed(t testing.TB, disk []byte) []byte {
	t.Helper()
	b := must.Get(artefact.QCOW2(disk, artefact.Plain))(t)
	return b
}

func open(b []byte) (*diskimage.Image, error) {
	return diskimage.Open(bytes.NewReader(b), int64(len(b)))
}

func TestOpen(t *testing.T) {
	t.Parallel()
	values := []diskimage.Value{{Key: 0xa, Value: "network: {}"}, {Key: 0xc, Value: "one"}}
	meta := map[uint8]string{0xa: "network: {}", 0xc: "one"}
	dual := append(slices.Clone(values), diskimage.Value{Key: 0x11, Value: "dual-boot"})
	tests := map[string]struct {
		form artefact.DiskForm
		meta []diskimage.Value
	}{
		"for UEFI":          {artefact.DiskForm{}, nil},
		"with META":         {artefact.DiskForm{Meta: meta}, values},
		"for a BIOS, too":   {artefact.DiskForm{Meta: meta, BIOS: true}, dual},
		"compressed, zlib":  {artefact.DiskForm{By: artefact.Zlib}, nil},
		"compressed, zstd":  {artefact.DiskForm{By: artefact.Zstd}, nil},
		"only META of GRUB": {artefact.DiskForm{BIOS: true}, dual[2:]},
	}
	want := must.Get(artefact.UKI(talos(t)))(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := must.Get(open(image(t, test.form)))(t)
			if diff := cmp.Diff(test.meta, got.Meta); diff != "" || got.BIOS != test.form.BIOS || got.SizeBytes%mib != 0 {
				t.Errorf("BIOS %t, %d bytes, META (-want +got):\n%s", got.BIOS, got.SizeBytes, diff)
			}
			uki, err := io.ReadAll(got.ESP.UKI.File)
			must.Hold(t, err == nil && bytes.Equal(uki, want),
				"another UKI of %d bytes, want %d, err = %v", len(uki), len(want), err)
		})
	}
}

// resum corrects the checksums of a table and its backup, so that only the content is at fault.
func resum(disk []byte) []byte {
	last := len(disk) - sector
	for _, header := range []int{sector, last} {
		at := int(binary.LittleEndian.Uint64(disk[header+72:])) * sector
		summed(disk[header:header+92], disk[at:at+128*entry])
	}
	return disk
}

// summed writes the checksums of a table's header, and returns it.
func summed(header, entries []byte) []byte {
	binary.LittleEndian.PutUint32(header[88:], crc32.ChecksumIEEE(entries))
	clear(header[16:20])
	binary.LittleEndian.PutUint32(header[16:], crc32.ChecksumIEEE(header))
	return header
}

// both changes partitions in the table and in its backup.
func both(change func(entries []byte)) func([]byte) []byte {
	return func(disk []byte) []byte {
		change(disk[entries : entries+128*entry])
		change(disk[len(disk)-sector-128*entry : len(disk)-sector])
		return resum(disk)
	}
}

func rename(n int, label string) func([]byte) []byte {
	return both(func(b []byte) {
		clear(b[n*entry+56 : (n+1)*entry])
		for i, c := range label {
			b[n*entry+56+2*i] = byte(c)
		}
	})
}

// flip changes one byte.
func flip(at func(disk []byte) int) func([]byte) []byte {
	return func(disk []byte) []byte {
		disk[at(disk)] ^= 1
		return disk
	}
}

func place(at int) func([]byte) int       { return func([]byte) int { return at } }
func fromEnd(at int) func([]byte) int     { return func(disk []byte) int { return len(disk) - at } }
func metaAt(disk []byte) int              { return bytes.Index(disk, []byte("\x5a\x4b\x3c\x2d")) }
func within(at int) func(disk []byte) int { return func(disk []byte) int { return metaAt(disk) + at } }

func TestRefused(t *testing.T) {
	t.Parallel()
	plain := image(t, artefact.DiskForm{Meta: map[uint8]string{0xc: "one"}, BIOS: true})
	disk := raw(t, plain)
	lost := func(from, size int) func([]byte) []byte {
		return func(disk []byte) []byte { clear(disk[len(disk)-from:][:size]); return disk }
	}
	tests := map[string]struct {
		change func(disk []byte) []byte
		want   string
	}{
		"a blank disk":               {func(disk []byte) []byte { clear(disk); return disk }, "no protective boot sector"},
		"no table":                   {flip(place(sector)), "partition table: it is missing"},
		"another checksum":           {flip(place(sector + 60)), "partition table: its header has another checksum than it says"},
		"another entry":              {flip(place(entries + 40)), "partition table: its partitions have another checksum than it says"},
		"no backup":                  {lost(sector, sector), "backup of the partition table: it is missing"},
		"the backup's checksum":      {flip(fromEnd(sector - 60)), "backup of the partition table: its header has another checksum"},
		"the backup's entries":       {flip(fromEnd(sector + 128*entry)), "backup of the partition table: its partitions have another checksum"},
		"another backup":             {func(d []byte) []byte { d[len(d)-sector-128*entry+20] ^= 1; return resum(d) }, "the partition table and its backup differ"},
		"a longer disk":              {func(d []byte) []byte { return append(d, make([]byte, sector)...) }, "the disk was cut short or has grown"},
		"a disk shorter by a sector": {func(d []byte) []byte { return d[:len(d)-sector] }, "the disk was cut short or has grown"},
		"another partition":          {rename(2, "STATE"), `partition 3, "STATE", is not one that Talos makes`},
		"a partition twice":          {rename(3, "BOOT"), `there are two partitions "BOOT"`},
		"no META":                    {both(func(b []byte) { clear(b[3*entry:][:entry]) }), `there is no partition "META"`},
		"another type":               {both(func(b []byte) { b[0]++ }), `partition 1, "EFI", is of another type`},
		"partitions that overlap":    {both(func(b []byte) { b[entry+33]-- }), `partitions "EFI" and "BIOS" overlap`},
		"out of the disk":            {both(func(b []byte) { b[3*entry+44] = 1 }), `partition 4, "META", leads out of the disk`},
		"sectors of 4 KiB":           {func(d []byte) []byte { copy(d[4096:], "EFI PART"); d[sector] = 0; return d }, "it is for disks with sectors of 4096 bytes"},
		"no file system":             {flip(place(firstPart + 510)), "EFI system partition: damaged or of a foreign format: no boot sector"},
		"META of another form":       {flip(within(0)), "META: its two copies differ"},
		"META's checksum":            {func(d []byte) []byte { at := metaAt(d); d[at+12] ^= 1; d[at+12+256<<10] ^= 1; return d }, "META: it has another checksum"},
		"something after META":       {flip(within(mib - 1)), "META: there is something after its values"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := open(packed(t, test.change(slices.Clone(disk))))
			must.Hold(t, errors.Is(err, bootimage.ErrFormat) && strings.Contains(err.Error(), test.want),
				"err = %v, want %q", err, test.want)
		})
	}
	for name, test := range map[string]struct {
		b    []byte
		want string
	}{
		"nothing":               {nil, "damaged or of a foreign format: qcow2 header: unexpected EOF"},
		"an ISO":                {make([]byte, mib), "damaged or of a foreign format: no qcow2 file"},
		"truncated by a sector": {plain[:len(plain)-sector], "damaged or of a foreign format: it is cut short: "},
	} {
		if _, err := open(test.b); !errors.Is(err, bootimage.ErrFormat) || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: err = %v, want %q", name, err, test.want)
		}
	}
}

// TestOnlyGRUB: what GRUB boots lies on XFS, so an image without a UKI is refused.
func TestOnlyGRUB(t *testing.T) {
	t.Parallel()
	disk := raw(t, image(t, artefact.DiskForm{}))
	disk = bytes.ReplaceAll(disk, []byte(".\x00e\x00f\x00i\x00"), []byte(".\x00e\x00f\x00x\x00")) // names of files, in UTF-16
	_, err := open(packed(t, disk))
	if !errors.Is(err, bootimage.ErrFormat) || !strings.Contains(err.Error(), "it boots only with GRUB, and what GRUB boots cannot be compared") {
		t.Errorf("err = %v", err)
	}
}

// unreadable fails from one place to another.
type unreadable struct {
	io.ReaderAt
	from, to int64
	err      error
}

func (u unreadable) ReadAt(p []byte, off int64) (int, error) {
	if off < u.to && off+int64(len(p)) > u.from {
		return 0, u.err
	}
	return u.ReaderAt.ReadAt(p, off)
}

// TestUnreadable: the image is not to blame for an error of the disk that it lies on.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	b := image(t, artefact.DiskForm{})
	const cluster = 8 << 10
	for name, at := range map[string]int64{"the header": 0, "the partition table": 2 * cluster, "the file system": 3 * cluster} {
		broken := errors.New("input/output error")
		_, err := diskimage.Open(unreadable{bytes.NewReader(b), at, at + cluster, broken}, int64(len(b)))
		must.Hold(t, errors.Is(err, broken) && !errors.Is(err, bootimage.ErrFormat), "%s: err = %v", name, err)
	}
}

// piece is a part of a disk that is laid over it.
type piece struct {
	at      int
	content []byte
}

// patched is a disk with pieces over it, the later ones on top.
type patched struct {
	disk   []byte
	pieces []piece
}

func (p patched) ReadAt(b []byte, off int64) (int, error) {
	n, err := bytes.NewReader(p.disk).ReadAt(b, off)
	for _, piece := range p.pieces {
		for i, c := range piece.content {
			if at := piece.at + i - int(off); at >= 0 && at < n {
				b[at] = c
			}
		}
	}
	return n, err
}

// FuzzOpen changes what comes before the partitions, the file system's tables, META,
// and the backup. Checksums are corrected, as otherwise little would get through.
func FuzzOpen(f *testing.F) {
	disk := raw(f, image(f, artefact.DiskForm{Meta: map[uint8]string{0xc: "one"}, BIOS: true}))
	f.Add(disk[entries:][:5*entry], disk[firstPart:][:sector], disk[metaAt(disk):][:64])
	f.Fuzz(func(t *testing.T, table, esp, meta []byte) {
		table = table[:min(len(table), 128*entry)]
		whole := slices.Concat(table, disk[entries+len(table):entries+128*entry])
		changed := patched{disk, []piece{{entries, whole}, {len(disk) - sector - 128*entry, whole}, {metaAt(disk), meta}, {firstPart, esp}}}
		for _, at := range []int{sector, len(disk) - sector} {
			header := slices.Clone(disk[at : at+92])
			changed.pieces = append(changed.pieces, piece{at, summed(header, whole)})
		}
		got, err := diskimage.OpenRaw(changed, int64(len(disk)))
		if err == nil {
			_, err = io.Copy(io.Discard, got.ESP.UKI.File)
		}
		must.Hold(t, err == nil || errors.Is(err, bootimage.ErrFormat), "err = %v", err)
	})
}
