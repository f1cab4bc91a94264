package bootimage

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// compressor unpacks blocks. A result is valid until the next call.
type compressor struct {
	unpack func(packed []byte, maxBytes int) ([]byte, error)
	close  func()
}

// newCompressor supports what imager requests from mksquashfs, xz before Talos 1.8
// and zstd since, and gzip, mksquashfs' default.
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
			z, err := newXZ(&xzStream{r: bufio.NewReader(bytes.NewReader(packed))})
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
	b, err := c.i.blocks.take(4)
	if err != nil {
		return err
	}
	length := binary.LittleEndian.Uint32(b)
	if length == 0 { // a hole
		c.block = make([]byte, size)
		return nil
	}
	c.block, err = c.s.data(c.at, length)
	c.at += int64(length &^ uncompressedData)
	return err
}

// data reads a block of file data; it is valid until the next one is read.
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
	e, err := m.take(fragmentEntryBytes)
	if err != nil {
		return nil, err
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
