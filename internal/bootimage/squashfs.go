package bootimage

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// squashfs reads the file system of a system extension, version 4.0 of the format
// (Documentation/filesystems/squashfs.rst and fs/squashfs/squashfs_fs.h of Linux).
//
// go-diskfs v1.9.4 drops set-id bits and unpacks inodes of 32 KB to 3.4 GiB; CalebQ42/squashfs v1.4.1 unpacks them to
// 2.4 GiB and cannot read an empty file; KarpelesLab/squashfs v1.2.0 panics at an uncompressed block of 1 MiB and reads
// no extended attributes.
type squashfs struct {
	io.ReaderAt
	super      superblock
	compressor compressor
	fragments  []int64 // where the metadata blocks of the fragment table are
	budget     *budget

	metas        map[int64]metaBlock // of recently read metadata: an inode is a small part of one
	packed       []byte              // buffer for the block being read
	fragment     []byte              // the fragment block read last: neighbours share one
	fragmentFrom int64
	seen         map[uint64]bool // directories, by inode reference
}

// superblock is the first 96 bytes.
type superblock struct {
	Magic         uint32
	Inodes        uint32
	ModifiedAt    uint32
	BlockBytes    uint32
	Fragments     uint32
	Compressor    uint16
	BlockLog      uint16
	Flags         uint16
	IDs           uint16
	Major, Minor  uint16
	Root          uint64 // inode reference
	UsedBytes     uint64
	IDTable       uint64
	XattrTable    uint64
	InodeTable    uint64
	DirTable      uint64
	FragmentTable uint64
	ExportTable   uint64
}

const (
	superblockBytes    = 96
	squashfsMagic      = 0x73717368
	squashfsMaxBlock   = 1 << 20
	squashfsNone       = ^uint64(0) // for a missing table
	noFragment         = ^uint32(0)
	metadataBytes      = 8192
	uncompressedMeta   = 1 << 15
	uncompressedData   = 1 << 24
	fragmentEntryBytes = 16
	keptMetas          = 64
	maxDepth           = 64
)

// readSquashfs reads every file. visit gets the content of regular files.
func readSquashfs(r io.ReaderAt, sizeBytes int64, b *budget, visit func(path string, content io.Reader) error) (Tree, error) {
	s := &squashfs{ReaderAt: io.NewSectionReader(r, 0, sizeBytes), budget: b, seen: map[uint64]bool{}, metas: map[int64]metaBlock{}}
	if err := s.open(sizeBytes); err != nil {
		return nil, err
	}
	defer s.compressor.close()
	if err := s.checkXattrs(); err != nil {
		return nil, fmt.Errorf("extended attributes: %w", err)
	}
	tree := Tree{}
	root, err := s.inode(s.super.Root)
	if err != nil {
		return nil, fmt.Errorf("root directory: %w", err)
	}
	if root.kind != inodeDir {
		return nil, errors.New("the root is not a directory")
	}
	return tree, s.walk(tree, "", root, visit)
}

func (s *squashfs) open(sizeBytes int64) error {
	if err := binary.Read(io.NewSectionReader(s, 0, superblockBytes), binary.LittleEndian, &s.super); err != nil {
		return fmt.Errorf("superblock: %w", unexpected(err))
	}
	b := s.super
	switch {
	case b.Magic != squashfsMagic:
		return errors.New("no squashfs")
	case b.Major != 4 || b.Minor != 0:
		return fmt.Errorf("squashfs %d.%d is not known", b.Major, b.Minor)
	case b.BlockBytes < 4096 || b.BlockBytes > squashfsMaxBlock || b.BlockBytes != 1<<(b.BlockLog&31) || b.BlockLog > 20:
		return fmt.Errorf("blocks of %d bytes", b.BlockBytes)
	case b.UsedBytes > uint64(sizeBytes):
		return io.ErrUnexpectedEOF
	case b.InodeTable >= b.DirTable || b.DirTable >= b.UsedBytes:
		return errors.New("the tables are out of order")
	case b.Fragments > maxFiles:
		return errTooManyFiles
	}
	var err error
	if s.compressor, err = newCompressor(b.Compressor, int(b.BlockBytes)); err != nil {
		return err
	}
	if b.Fragments > 0 {
		s.fragments, err = s.index(b.FragmentTable, int(b.Fragments), fragmentEntryBytes)
	}
	return err
}

// index reads the positions of the metadata blocks that hold n entries.
func (s *squashfs) index(at uint64, n, entryBytes int) ([]int64, error) {
	blocks := (n*entryBytes + metadataBytes - 1) / metadataBytes
	if at >= s.super.UsedBytes {
		return nil, errors.New("a table lies beyond the end")
	}
	b, err := bytesAt(s, int64(at), 8*blocks)
	if err != nil {
		return nil, err
	}
	found := make([]int64, blocks)
	for i := range found {
		v := binary.LittleEndian.Uint64(b[8*i:])
		if v >= s.super.UsedBytes {
			return nil, errors.New("a table lies beyond the end")
		}
		found[i] = int64(v)
	}
	return found, nil
}

// metadataReader reads a table: blocks of at most 8 KiB, each after its length.
type metadataReader struct {
	s     *squashfs
	next  int64 // position of the next block
	block []byte
	err   error // the error of take
}

// metadata reads from an offset in the metadata block at a position.
func (s *squashfs) metadata(block uint64, offset int) (*metadataReader, error) {
	if block >= s.super.UsedBytes {
		return nil, errors.New("a reference beyond the end")
	}
	m := &metadataReader{s: s, next: int64(block)}
	if err := m.advance(); err != nil {
		return nil, err
	}
	if offset > len(m.block) {
		return nil, errors.New("a reference beyond the end of its block")
	}
	m.block = m.block[offset:]
	return m, nil
}

func (m *metadataReader) advance() error {
	b, ok := m.s.metas[m.next]
	if !ok {
		var err error
		if b, err = m.s.metaBlock(m.next); err != nil {
			return err
		}
		if len(m.s.metas) >= keptMetas {
			clear(m.s.metas)
		}
		m.s.metas[m.next] = b
	}
	m.block, m.next = b.content, b.next
	return nil
}

// metaBlock is a metadata block and the position of the next one.
type metaBlock struct {
	content []byte
	next    int64
}

func (s *squashfs) metaBlock(at int64) (metaBlock, error) {
	h, err := bytesAt(s, at, 2)
	if err != nil {
		return metaBlock{}, err
	}
	header := binary.LittleEndian.Uint16(h)
	size := int(header &^ uncompressedMeta)
	if size == 0 || size > metadataBytes {
		return metaBlock{}, fmt.Errorf("a metadata block of %d bytes", size)
	}
	b, err := bytesAt(s, at+2, size)
	if err != nil {
		return metaBlock{}, err
	}
	if header&uncompressedMeta == 0 {
		unpacked, err := s.compressor.unpack(b, metadataBytes)
		if err != nil {
			return metaBlock{}, err
		}
		b = bytes.Clone(unpacked)
	}
	return metaBlock{content: b, next: at + int64(2+size)}, nil
}

func (m *metadataReader) Read(p []byte) (int, error) {
	for len(m.block) == 0 {
		if err := m.advance(); err != nil {
			return 0, err
		}
	}
	n := copy(p, m.block)
	m.block = m.block[n:]
	return n, nil
}

// take reads n bytes; the caller must have checked n. After an error, all bytes are zero.
func (m *metadataReader) take(n int) []byte {
	b := make([]byte, n)
	if m.err == nil {
		_, err := io.ReadFull(m, b)
		m.err = unexpected(err)
	}
	if m.err != nil {
		clear(b)
	}
	return b
}

// compressor unpacks blocks. A result is valid until the next call.
type compressor struct {
	unpack func(packed []byte, maxBytes int) ([]byte, error)
	close  func()
}

// newCompressor supports the compressions that imager requests from mksquashfs, xz before Talos 1.8 and zstd since,
// and gzip, mksquashfs' default.
func newCompressor(id uint16, blockBytes int) (compressor, error) {
	out := make([]byte, 0, max(blockBytes, metadataBytes))
	switch id {
	case 1:
		return compressor{unpack: func(packed []byte, maxBytes int) ([]byte, error) {
			z, err := zlib.NewReader(bytes.NewReader(packed))
			if err != nil {
				return nil, err
			}
			return fill(out[:0], z, maxBytes)
		}, close: func() {}}, nil
	case 4:
		return compressor{unpack: func(packed []byte, maxBytes int) ([]byte, error) {
			z, err := newXZ(newXZStream(bufio.NewReader(bytes.NewReader(packed))))
			if err != nil {
				return nil, err
			}
			return fill(out[:0], z, maxBytes)
		}, close: func() {}}, nil
	case 6:
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindowBytes), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return compressor{}, err
		}
		return compressor{unpack: func(packed []byte, maxBytes int) ([]byte, error) {
			return d.DecodeAll(packed, out[:0:maxBytes])
		}, close: d.Close}, nil
	}
	return compressor{}, fmt.Errorf("compression %d is not known", id)
}

// fill reads r to its end, which has to come within maxBytes.
func fill(out []byte, r io.Reader, maxBytes int) ([]byte, error) {
	out = out[:maxBytes]
	n, err := io.ReadFull(r, out)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return out[:n], nil
	case err != nil:
		return nil, err
	}
	if n, err := r.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return nil, errors.New("a block is too large")
	}
	return out, nil
}

// squashfsContent reads a regular file block by block.
type squashfsContent struct {
	s     *squashfs
	i     squashfsInode
	at    int64 // in the image, of the next block
	left  int64 // bytes of the file not yet in block
	block []byte
}

func (s *squashfs) content(i squashfsInode) *squashfsContent {
	return &squashfsContent{s: s, i: i, at: int64(i.start), left: i.size}
}

func (c *squashfsContent) Read(p []byte) (int, error) {
	if len(c.block) == 0 {
		if c.left == 0 {
			return 0, io.EOF
		}
		if err := c.advance(); err != nil {
			return 0, unexpected(err)
		}
	}
	n := copy(p, c.block)
	c.block = c.block[n:]
	return n, nil
}

func (c *squashfsContent) advance() error {
	size := min(c.left, int64(c.s.super.BlockBytes))
	var err error
	if size < int64(c.s.super.BlockBytes) && c.i.fragment != noFragment {
		c.block, err = c.s.inFragment(c.i.fragment, c.i.offset, int(size))
	} else {
		err = c.dataBlock(int(size))
	}
	if err == nil && int64(len(c.block)) != size {
		err = fmt.Errorf("a block of %d bytes instead of %d", len(c.block), size)
	}
	c.left -= size
	return err
}

func (c *squashfsContent) dataBlock(size int) error {
	length := binary.LittleEndian.Uint32(c.i.blocks.take(4))
	if err := c.i.blocks.err; err != nil {
		return err
	}
	if length == 0 { // a hole
		c.block = make([]byte, size)
		return nil
	}
	var err error
	c.block, err = c.s.data(c.at, length)
	c.at += int64(length &^ uncompressedData)
	return err
}

// data reads a block of file data. The block is valid until the next one is read.
func (s *squashfs) data(at int64, length uint32) ([]byte, error) {
	size := length &^ uncompressedData
	if size > s.super.BlockBytes {
		return nil, fmt.Errorf("a block of %d bytes", size)
	}
	s.packed = slices.Grow(s.packed[:0], int(size))[:size]
	if n, err := s.ReadAt(s.packed, at); n < len(s.packed) {
		return nil, unexpected(err)
	}
	if length&uncompressedData != 0 {
		return s.packed, nil
	}
	return s.compressor.unpack(s.packed, int(s.super.BlockBytes))
}

// inFragment returns the end of a file, which shares a block with the ends of others.
func (s *squashfs) inFragment(n uint32, offset, size int) ([]byte, error) {
	if n >= s.super.Fragments {
		return nil, fmt.Errorf("no fragment %d", n)
	}
	at := int(n) * fragmentEntryBytes
	m, err := s.metadata(uint64(s.fragments[at/metadataBytes]), at%metadataBytes)
	if err != nil {
		return nil, err
	}
	e := m.take(fragmentEntryBytes)
	if m.err != nil {
		return nil, m.err
	}
	from := int64(binary.LittleEndian.Uint64(e))
	if from < 0 {
		return nil, errors.New("a fragment beyond the end")
	}
	if s.fragment == nil || s.fragmentFrom != from {
		b, err := s.data(from, binary.LittleEndian.Uint32(e[8:]))
		if err != nil {
			return nil, err
		}
		s.fragment, s.fragmentFrom = bytes.Clone(b), from
	}
	if offset < 0 || offset > len(s.fragment) || size > len(s.fragment)-offset {
		return nil, errors.New("a file's end is not in its fragment")
	}
	return s.fragment[offset:][:size], nil
}

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

// checkXattrs refuses every extended attribute except SELinux' label, which imager sets (xattrPseudoFlags in Talos'
// internal/pkg/extensions/compress.go): others give a program capabilities, or make overlayfs hide files.
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
