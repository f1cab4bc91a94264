package bootimage

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The types of inodes; extended ones are 7 greater.
const (
	inodeDir      = 1
	inodeRegular  = 2
	inodeSymlink  = 3
	inodeExtended = 7
)

// squashfsInode is a parsed inode, for the types that an extension may have.
type squashfsInode struct {
	ref    uint64
	kind   uint16
	mode   uint32
	size   int64
	target string // of a symbolic link

	// a directory's listing, or a file's data
	start    uint64
	offset   int // in a metadata block, or in the fragment
	fragment uint32
	blocks   *metadataReader // at the list of the file's block sizes
}

// inode reads the inode at a reference: a metadata block's position and an offset in it.
func (s *squashfs) inode(ref uint64) (squashfsInode, error) {
	m, err := s.metadata(s.super.InodeTable+ref>>16, int(ref&0xffff))
	if err != nil {
		return squashfsInode{}, err
	}
	h := m.take(16)
	i := squashfsInode{ref: ref, kind: binary.LittleEndian.Uint16(h), mode: uint32(binary.LittleEndian.Uint16(h[2:]))}
	switch i.kind {
	case inodeDir, inodeDir + inodeExtended:
		i.directory(m)
	case inodeRegular, inodeRegular + inodeExtended:
		err = i.regular(m)
	case inodeSymlink, inodeSymlink + inodeExtended:
		err = i.link(m)
	default:
		err = errors.New("neither a file, a directory nor a symbolic link")
	}
	if i.kind > inodeExtended {
		i.kind -= inodeExtended
	}
	return i, cmp.Or(m.err, err)
}

func (i *squashfsInode) directory(m *metadataReader) {
	le := binary.LittleEndian
	if i.kind == inodeDir {
		b := m.take(16)
		i.start, i.size, i.offset = uint64(le.Uint32(b)), int64(le.Uint16(b[8:])), int(le.Uint16(b[10:]))
		return
	}
	b := m.take(24)
	i.size, i.start, i.offset = int64(le.Uint32(b[4:])), uint64(le.Uint32(b[8:])), int(le.Uint16(b[18:]))
}

func (i *squashfsInode) regular(m *metadataReader) error {
	le := binary.LittleEndian
	i.blocks = m
	if i.kind == inodeRegular {
		b := m.take(16)
		i.start, i.fragment, i.offset, i.size = uint64(le.Uint32(b)), le.Uint32(b[4:]), int(le.Uint32(b[8:])), int64(le.Uint32(b[12:]))
		return nil
	}
	b := m.take(40)
	i.start, i.fragment, i.offset = le.Uint64(b), le.Uint32(b[28:]), int(le.Uint32(b[32:]))
	size := le.Uint64(b[8:])
	if size > uint64(maxFileBytes) {
		return errTooLarge
	}
	i.size = int64(size)
	return nil
}

func (i *squashfsInode) link(m *metadataReader) error {
	n := binary.LittleEndian.Uint32(m.take(8)[4:])
	if n == 0 || n > maxPathBytes {
		return fmt.Errorf("a symbolic link of %d bytes", n)
	}
	i.target = string(m.take(int(n)))
	return nil
}

// walk adds a directory's content to the tree.
func (s *squashfs) walk(tree Tree, dir string, d squashfsInode, visit func(string, io.Reader) error) error {
	if s.seen[d.ref] || strings.Count(dir, "/") > maxDepth || len(dir) > maxPathBytes {
		return fmt.Errorf("%s/: the directory contains itself, or is too deep", dir)
	}
	s.seen[d.ref] = true
	return s.list(d, func(name string, ref uint64) error {
		path := dir + "/" + name
		if err := errors.Join(s.budget.take(0), s.budget.keep(path)); err != nil {
			return err
		}
		i, err := s.inode(ref)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		switch i.kind {
		case inodeDir:
			return s.walk(tree, path, i, visit)
		case inodeSymlink:
			if err := s.budget.keep(i.target); err != nil {
				return err
			}
			return tree.add(path, symlink(i.target))
		}
		if err := s.budget.take(i.size); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		f, err := regular(permissions(i.mode), s.content(i), func(r io.Reader) error { return visit(path, r) })
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return tree.add(path, f)
	})
}

// list calls each with the entries of a directory.
func (s *squashfs) list(d squashfsInode, each func(name string, ref uint64) error) error {
	le := binary.LittleEndian
	left := d.size - 3 // of "." and "..", which are not stored
	if left <= 0 {
		return nil
	}
	m, err := s.metadata(s.super.DirTable+d.start, d.offset)
	if err != nil {
		return err
	}
	for left > 0 {
		h := m.take(12)
		left -= 12
		block := uint64(le.Uint32(h[4:]))
		for range le.Uint32(h) + 1 {
			e := m.take(8)
			name := m.take(int(le.Uint16(e[6:])) + 1)
			if m.err != nil {
				return m.err
			}
			if left -= int64(8 + len(name)); left < 0 {
				return errors.New("a directory is longer than it says")
			}
			if err := fileName(string(name)); err != nil {
				return err
			}
			if err := each(string(name), block<<16|uint64(le.Uint16(e))); err != nil {
				return err
			}
		}
	}
	return nil
}

// fileName refuses an invalid name in a directory.
func fileName(name string) error {
	if len(name) > 256 || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%.40q is not a file name", name)
	}
	return nil
}

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
		e := m.take(xattrEntryBytes)
		if m.err != nil {
			return m.err
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
		h := m.take(4)
		name := m.take(int(le.Uint16(h[2:])))
		if m.err != nil {
			return m.err
		}
		if space := le.Uint16(h) &^ xattrOutOfLine; space != xattrSecurity || string(name) != "selinux" {
			return fmt.Errorf("%.40q, of name space %d, does not belong in an extension", name, space)
		}
		n := le.Uint32(m.take(4))
		if n > maxXattrBytes {
			return fmt.Errorf("a value of %d bytes", n)
		}
		m.take(int(n))
	}
	return m.err
}
