package bootimage

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	xattrEntryBytes = 16
	xattrSecurity   = 2 // the name space "security."
	xattrOutOfLine  = 0x100
	maxXattrSets    = maxFiles
	maxXattrs       = 16 // of one file
	maxXattrBytes   = 64 << 10
)

// checkXattrs refuses every extended attribute except SELinux' label, which imager
// sets (xattrPseudoFlags in Talos' internal/pkg/extensions/compress.go): others give
// a program capabilities, or make overlayfs hide files.
func (s *squashfs) checkXattrs() error {
	le := binary.LittleEndian
	if s.super.XattrTable == squashfsNone {
		return nil
	}
	if s.super.XattrTable >= s.super.UsedBytes {
		return errors.New("the table lies beyond the end")
	}
	h, err := bytesAt(s, int64(s.super.XattrTable), 16)
	if err != nil {
		return err
	}
	first, sets := le.Uint64(h), le.Uint32(h[8:])
	if sets > maxXattrSets || first >= s.super.UsedBytes {
		return errors.New("the table is too large, or lies beyond the end")
	}
	blocks, err := s.index(s.super.XattrTable+16, int(sets), xattrEntryBytes)
	if err != nil {
		return err
	}
	for n := range int(sets) {
		m, err := s.metadata(uint64(blocks[n*xattrEntryBytes/metadataBytes]), n*xattrEntryBytes%metadataBytes)
		if err != nil {
			return err
		}
		e, err := m.take(xattrEntryBytes)
		if err != nil {
			return err
		}
		if err := s.checkXattrSet(first, le.Uint64(e), le.Uint32(e[8:])); err != nil {
			return err
		}
	}
	return nil
}

func (s *squashfs) checkXattrSet(first, ref uint64, count uint32) error {
	le := binary.LittleEndian
	m, err := s.metadata(first+ref>>16, int(ref&0xffff))
	if err != nil {
		return err
	}
	if count > maxXattrs {
		return fmt.Errorf("%d of one file", count)
	}
	for range count {
		h, err := m.take(4)
		if err != nil {
			return err
		}
		name, err := m.take(int(le.Uint16(h[2:])))
		if err != nil {
			return err
		}
		if space := le.Uint16(h) &^ xattrOutOfLine; space != xattrSecurity || string(name) != "selinux" {
			return fmt.Errorf("%.40q, of name space %d, does not belong in an extension", name, space)
		}
		size, err := m.take(4)
		if err != nil {
			return err
		}
		if n := le.Uint32(size); n > maxXattrBytes {
			return fmt.Errorf("a value of %d bytes", n)
		} else if _, err := m.take(int(n)); err != nil {
			return err
		}
	}
	return nil
}
