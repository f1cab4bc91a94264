// Package diskimage reads a Talos disk image from its bytes alone: the qcow2 file, the partition table and its backup,
// the META values, and what UEFI boots. Like internal/bootimage it needs no root, mount or other program, and its
// memory does not grow with an image.
//
// All input is untrusted. Whatever is damaged, foreign or not understood is refused with bootimage.ErrFormat. The
// package knows the images of Talos 1.10 and later: see cmd/installer/pkg/install and pkg/imager of siderolabs/talos.
package diskimage

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/qcow2"
)

// Image is a disk image: what UEFI boots from it, and what Talos finds on it.
type Image struct {
	ESP       *bootimage.ESP // with a UKI
	Meta      []Value        // of the META partition, in the order of their keys
	BIOS      bool           // a BIOS would boot it, too, from partitions that this package does not read
	SizeBytes int64          // of the disk
}

// Names of partitions.
const (
	efiLabel  = "EFI"
	biosLabel = "BIOS"
	bootLabel = "BOOT"
	metaLabel = "META"
)

// errOnlyGRUB refuses an image whose kernel and initramfs lie on XFS, which nothing here reads.
var errOnlyGRUB = errors.New("its EFI system partition has no UKI: it boots only with GRUB, and what GRUB boots cannot be compared")

// Open reads the structure of a disk image in qcow2 format, a file of fileBytes. What
// UEFI boots is read from r on demand.
func Open(r io.ReaderAt, fileBytes int64) (*Image, error) {
	disk, err := qcow2.Open(r, fileBytes)
	if err != nil {
		return nil, asFormat(err)
	}
	c := &content{disk: disk}
	i, err := OpenRaw(c, disk.Size())
	if c.outside != nil { // the bytes are not to blame
		return nil, c.outside
	}
	return i, err
}

// OpenRaw does the same as Open for the disk itself, of sizeBytes.
func OpenRaw(r io.ReaderAt, sizeBytes int64) (*Image, error) {
	i, err := openDisk(io.NewSectionReader(r, 0, sizeBytes))
	if err != nil && !errors.Is(err, bootimage.ErrFormat) {
		return nil, damaged{err}
	}
	return i, err
}

// asFormat turns damage of the qcow2 file into bootimage.ErrFormat.
func asFormat(err error) error {
	if errors.Is(err, qcow2.ErrFormat) {
		return damaged{err}
	}
	return err
}

// damaged makes an error bootimage.ErrFormat. Its text says only once that something is damaged.
type damaged struct{ err error }

func (d damaged) Error() string {
	if errors.Is(d.err, qcow2.ErrFormat) {
		return d.err.Error()
	}
	return bootimage.ErrFormat.Error() + ": " + d.err.Error()
}

func (d damaged) Is(target error) bool { return target == bootimage.ErrFormat }
func (d damaged) Unwrap() error        { return d.err }

// content is a disk. Damage that is found while reading is bootimage.ErrFormat.
type content struct {
	disk    *qcow2.Disk
	outside error // an error that the bytes are not to blame for
}

func (c *content) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.disk.ReadAt(p, off)
	if err = asFormat(err); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bootimage.ErrFormat) {
		c.outside = err
	}
	return n, err
}

func openDisk(disk *io.SectionReader) (*Image, error) {
	table, err := readTable(disk)
	if err != nil {
		return nil, err
	}
	i := &Image{SizeBytes: disk.Size(), BIOS: table.has(biosLabel) || table.has(bootLabel)}
	esp := table.open(efiLabel, disk)
	if i.ESP, err = bootimage.OpenESP(esp, esp.Size()); err != nil {
		return nil, err
	}
	if i.ESP.UKI == nil {
		return nil, errOnlyGRUB
	}
	if i.Meta, err = readMeta(table.open(metaLabel, disk)); err != nil {
		return nil, fmt.Errorf("META: %w", err)
	}
	return i, nil
}

// bytesAt reads exactly n bytes.
func bytesAt(r io.ReaderAt, off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := io.ReadFull(io.NewSectionReader(r, off, int64(n)), b)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// Value is a value of the META partition, which Talos reads before any configuration.
type Value struct {
	Key   uint8 // 0xc, … : pkg/machinery/meta of siderolabs/talos
	Value string
}

// The form of META is that of adv/talos in siderolabs/go-adv: two equal copies.
const (
	metaBytes  = 256 << 10
	metaMagic1 = 0x5a4b3c2d
	metaMagic2 = 0xa5b4c3d2
	metaSum    = metaBytes - 36
)

// readMeta reads a META partition; a partition without values is blank. Talos also takes values in the older form of
// syslinux, from the end of the partition. imager never writes that form, so whatever follows the copies is refused.
func readMeta(r *io.SectionReader) ([]Value, error) {
	if r.Size() < 2*metaBytes {
		return nil, fmt.Errorf("a partition of %d bytes", r.Size())
	}
	first, err := bytesAt(r, 0, metaBytes)
	if err != nil {
		return nil, err
	}
	second, err := bytesAt(r, metaBytes, metaBytes)
	if err != nil {
		return nil, err
	}
	if err := blank(io.NewSectionReader(r, 2*metaBytes, r.Size()-2*metaBytes)); err != nil {
		return nil, err
	}
	if !bytes.Equal(first, second) {
		return nil, errors.New("its two copies differ")
	}
	if !slices.ContainsFunc(first, func(b byte) bool { return b != 0 }) {
		return nil, nil
	}
	return metaValues(first)
}

func metaValues(b []byte) ([]Value, error) {
	be := binary.BigEndian
	if be.Uint32(b) != metaMagic1 || be.Uint32(b[metaBytes-4:]) != metaMagic2 {
		return nil, errors.New("it is not in Talos' form")
	}
	sum := slices.Clone(b[metaSum : metaSum+sha256.Size])
	clear(b[metaSum : metaSum+sha256.Size])
	if got := sha256.Sum256(b); !bytes.Equal(got[:], sum) {
		return nil, errors.New("it has another checksum than it says")
	}
	var values []Value
	for data := b[4:metaSum]; len(data) >= 8 && be.Uint32(data) != 0; {
		key, size := be.Uint32(data), int64(be.Uint32(data[4:]))
		switch {
		case key > 0xff:
			return nil, fmt.Errorf("a key of %#x", key)
		case size > int64(len(data)-8):
			return nil, fmt.Errorf("the value of %#x leads beyond the end", key)
		case slices.ContainsFunc(values, func(v Value) bool { return v.Key == uint8(key) }):
			return nil, fmt.Errorf("%#x has two values", key)
		}
		values = append(values, Value{Key: uint8(key), Value: string(data[8 : 8+size])})
		data = data[8+size:]
	}
	slices.SortFunc(values, func(a, b Value) int { return cmp.Compare(a.Key, b.Key) })
	return values, nil
}

// blank refuses anything but zeros.
func blank(r io.Reader) error {
	b := make([]byte, 32<<10)
	for {
		n, err := r.Read(b)
		if slices.ContainsFunc(b[:n], func(b byte) bool { return b != 0 }) {
			return errors.New("there is something after its values")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// A GUID partition table, with its backup at the end of the disk: UEFI specification, 5.3.
// go-diskfs v1.9.4 takes a table that says it lies in another sector, and a backup with
// other partitions; it allocates 1 GiB for a header with 8,388,608 partitions.
const (
	headerBytes   = 92
	entryBytes    = 128
	maxPartitions = 128
	typeBytes     = 16
	sector        = 512
)

// The types of partitions (internal/pkg/partition of siderolabs/talos), as a table has them.
var (
	efiType   = guid("C12A7328-F81F-11D2-BA4B-00A0C93EC93B")
	biosType  = guid("21686148-6449-6E6F-744E-656564454649")
	linuxType = guid("0FC63DAF-8483-4772-8E79-3D69D8477DE4")
)

// talosPartitions are the partitions that imager makes; STATE and EPHEMERAL come with the first boot.
var talosPartitions = map[string][typeBytes]byte{efiLabel: efiType, biosLabel: biosType, bootLabel: linuxType, metaLabel: linuxType}

// guid is a GUID's mixed-endian form.
func guid(text string) (b [typeBytes]byte) {
	parts := strings.Split(text, "-")
	raw := make([][]byte, len(parts))
	for i, part := range parts {
		if _, err := fmt.Sscanf(part, "%x", &raw[i]); err != nil {
			panic("diskimage: " + text)
		}
	}
	for i := range 3 {
		slices.Reverse(raw[i])
	}
	copy(b[:], slices.Concat(raw...))
	return b
}

// table is a partition table.
type table struct {
	partitions  []partition
	entriesSum  uint32
	entries     uint64 // the first sector of the entries; all places here are in sectors
	first, last uint64 // the usable sectors
	disk        [16]byte
}

type partition struct {
	label       string
	kind        [typeBytes]byte
	first, last uint64
}

func (t *table) find(label string) int {
	return slices.IndexFunc(t.partitions, func(p partition) bool { return p.label == label })
}

func (t *table) has(label string) bool { return t.find(label) >= 0 }

// open returns the content of a partition. The table has to have the partition.
func (t *table) open(label string, disk *io.SectionReader) *io.SectionReader {
	p := t.partitions[t.find(label)]
	return io.NewSectionReader(disk, int64(p.first)*sector, int64(p.last-p.first+1)*sector)
}

// readTable reads the partition table and its backup. The two have to be equal, and have the partitions of a Talos
// that was never booted.
func readTable(disk *io.SectionReader) (*table, error) {
	last := uint64(disk.Size()/sector) - 1
	boot, err := bytesAt(disk, 0, sector)
	if err != nil {
		return nil, fmt.Errorf("boot sector: %w", err)
	}
	const firstEntry, kind, protective = 446, 4, 0xee
	if boot[510] != 0x55 || boot[511] != 0xaa || boot[firstEntry+kind] != protective {
		return nil, errors.New("no protective boot sector before the partition table")
	}
	t, err := readHeader(disk, 1, last)
	if err != nil {
		return nil, fmt.Errorf("partition table: %w", err)
	}
	backup, err := readHeader(disk, last, 1)
	if err != nil {
		return nil, fmt.Errorf("backup of the partition table: %w", err)
	}
	if t.entriesSum != backup.entriesSum || t.disk != backup.disk || t.first != backup.first || t.last != backup.last {
		return nil, errors.New("the partition table and its backup differ")
	}
	return t, t.check()
}

// readHeader reads the table whose header is in the sector at. The header of the table's other copy is in the sector
// other.
func readHeader(disk *io.SectionReader, at, other uint64) (*table, error) {
	if at >= uint64(disk.Size()/sector) {
		return nil, io.ErrUnexpectedEOF
	}
	h, err := bytesAt(disk, int64(at)*sector, sector)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	if string(h[:8]) != "EFI PART" {
		if large, err := bytesAt(disk, 4096, 8); err == nil && at == 1 && string(large) == "EFI PART" {
			return nil, errors.New("it is for disks with sectors of 4096 bytes; Proxmox' have 512")
		}
		return nil, errors.New("it is missing")
	}
	sum := le.Uint32(h[16:])
	clear(h[16:20])
	switch {
	case le.Uint32(h[8:]) != 0x10000 || le.Uint32(h[12:]) != headerBytes:
		return nil, errors.New("its header is of an unknown version")
	case crc32.ChecksumIEEE(h[:headerBytes]) != sum:
		return nil, errors.New("its header has another checksum than it says")
	case le.Uint64(h[24:]) != at:
		return nil, fmt.Errorf("it says that it lies in sector %d, but is in %d", le.Uint64(h[24:]), at)
	case le.Uint64(h[32:]) != other:
		return nil, fmt.Errorf("it says that its other copy lies in sector %d, not in %d: the disk was cut short or has grown", le.Uint64(h[32:]), other)
	case le.Uint32(h[84:]) != entryBytes || le.Uint32(h[80:]) == 0 || le.Uint32(h[80:]) > maxPartitions:
		return nil, errors.New("it has another form than Talos makes")
	}
	t := &table{first: le.Uint64(h[40:]), last: le.Uint64(h[48:]), entries: le.Uint64(h[72:]), entriesSum: le.Uint32(h[88:])}
	copy(t.disk[:], h[56:72])
	return t, t.readEntries(disk, int(le.Uint32(h[80:])))
}

func (t *table) readEntries(disk *io.SectionReader, count int) error {
	if sectors := uint64(disk.Size() / sector); t.entries >= sectors || t.last >= sectors || t.first > t.last {
		return errors.New("it leads beyond the end of the disk")
	}
	b, err := bytesAt(disk, int64(t.entries)*sector, count*entryBytes)
	if err != nil {
		return fmt.Errorf("its partitions: %w", err)
	}
	if crc32.ChecksumIEEE(b) != t.entriesSum {
		return errors.New("its partitions have another checksum than it says")
	}
	le := binary.LittleEndian
	for ; len(b) > 0; b = b[entryBytes:] {
		p := partition{kind: [typeBytes]byte(b), first: le.Uint64(b[32:]), last: le.Uint64(b[40:]), label: label(b[56:entryBytes])}
		if p.kind != [typeBytes]byte{} {
			t.partitions = append(t.partitions, p)
		}
	}
	return nil
}

// label returns a partition's name, which the table has in UTF-16.
func label(b []byte) string {
	var units []uint16
	for ; len(b) > 0; b = b[2:] {
		u := binary.LittleEndian.Uint16(b)
		if u == 0 {
			break
		}
		units = append(units, u)
	}
	return string(utf16.Decode(units))
}

// check refuses any partitions but Talos' own, each once and apart from the others. EFI and META have to be there.
func (t *table) check() error {
	for i, p := range t.partitions {
		kind, known := talosPartitions[p.label]
		switch {
		case !known:
			return fmt.Errorf("partition %d, %q, is not one that Talos makes", i+1, p.label)
		case p.kind != kind:
			return fmt.Errorf("partition %d, %q, is of another type than Talos gives it", i+1, p.label)
		case t.find(p.label) != i:
			return fmt.Errorf("there are two partitions %q", p.label)
		case p.first < t.first || p.last > t.last || p.first > p.last:
			return fmt.Errorf("partition %d, %q, leads out of the disk", i+1, p.label)
		}
		for _, other := range t.partitions[:i] {
			if p.first <= other.last && other.first <= p.last {
				return fmt.Errorf("partitions %q and %q overlap", other.label, p.label)
			}
		}
	}
	for _, label := range []string{efiLabel, metaLabel} {
		if !t.has(label) {
			return fmt.Errorf("there is no partition %q", label)
		}
	}
	return nil
}
