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
	src := &source{r: r}
	i, err := open(src, fileBytes)
	switch {
	case err == nil:
		return i, nil
	case src.err != nil: // the bytes are not to blame
		return nil, src.err
	case errors.Is(err, bootimage.ErrFormat):
		return nil, err
	}
	return nil, damaged{err}
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
type content struct{ disk *qcow2.Disk }

func (c content) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.disk.ReadAt(p, off)
	if errors.Is(err, qcow2.ErrFormat) {
		err = damaged{err}
	}
	return n, err
}

func open(r io.ReaderAt, fileBytes int64) (*Image, error) {
	q, err := qcow2.Open(r, fileBytes)
	if err != nil {
		return nil, err
	}
	return openDisk(io.NewSectionReader(content{q}, 0, q.Size()))
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

// source records an error of reading, which the bytes are not to blame for.
type source struct {
	r   io.ReaderAt
	err error
}

func (s *source) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.r.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// bytesAt reads exactly n bytes.
func bytesAt(r io.ReaderAt, off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	got, err := r.ReadAt(b, off)
	if got == n {
		return b, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return nil, err
}
