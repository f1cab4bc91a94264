// Package diskimage reads a Talos disk image from its bytes alone: the qcow2 file, the
// partition table and its backup, the META values, and what UEFI boots. Like
// internal/bootimage it needs no root, mount or other program, and its memory does not
// grow with an image.
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
	"io"
	"slices"

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
