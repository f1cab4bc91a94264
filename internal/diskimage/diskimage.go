// Package diskimage reads a Talos disk image from its bytes alone: the qcow2 file, the
// partition table and its backup, the META values, and what UEFI boots. Like
// internal/bootimage it needs no root, mount or other program, and its memory does not
// grow with an image.
//
// All input is untrusted. Whatever is damaged, foreign or not understood is refused
// with bootimage.ErrFormat. It knows the images of Talos 1.10 and later: see
// cmd/installer/pkg/install and pkg/imager of siderolabs/talos.
package diskimage

import (
	"errors"
	"fmt"
	"io"

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

// OpenRaw is Open for the disk itself, of sizeBytes.
func OpenRaw(r io.ReaderAt, sizeBytes int64) (*Image, error) {
	i, err := openDisk(io.NewSectionReader(r, 0, sizeBytes))
	if err != nil && !errors.Is(err, bootimage.ErrFormat) {
		return nil, damaged{err}
	}
	return i, err
}

// asFormat makes damage of the file bootimage.ErrFormat.
func asFormat(err error) error {
	if errors.Is(err, qcow2.ErrFormat) {
		return damaged{err}
	}
	return err
}

// damaged is an error as bootimage.ErrFormat, said once.
type damaged struct{ err error }

func (d damaged) Error() string {
	if errors.Is(d.err, qcow2.ErrFormat) {
		return d.err.Error()
	}
	return bootimage.ErrFormat.Error() + ": " + d.err.Error()
}

func (d damaged) Is(target error) bool { return target == bootimage.ErrFormat }
func (d damaged) Unwrap() error        { return d.err }

// content is a disk whose damage is bootimage.ErrFormat, whenever it is read.
type content struct {
	disk    *qcow2.Disk
	outside error // that the bytes are not to blame for
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
