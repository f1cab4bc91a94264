package bootimage

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ulikunitz/xz"
)

// xzStream passes the bytes of exactly one .xz stream (the .xz file format, 1.1.0)
// and then ends. It walks the LZMA2 chunks without unpacking them, and refuses what
// the kernel cannot unpack and dictionaries that are too large.
type xzStream struct {
	r     *bufio.Reader
	ready []byte
	left  int64 // bytes to pass on without parsing
	block int64 // bytes of the block's chunks
	sum   int64 // bytes of a block's check
	next  func() error
	err   error
}

const (
	xzMagic        = "\xfd7zXZ\x00"
	xzMaxDictBytes = 32 << 20
	xzMaxRecords   = 1 << 16
	xzFilterLZMA2  = 0x21
)

func (x *xzStream) Read(p []byte) (int, error) {
	for len(x.ready) == 0 && x.left == 0 {
		if x.err == nil {
			if x.next == nil {
				x.next = x.streamHeader
			}
			x.err = x.next()
		}
		if x.err != nil {
			return 0, x.err
		}
	}
	if len(x.ready) > 0 {
		n := copy(p, x.ready)
		x.ready = x.ready[n:]
		return n, nil
	}
	n, err := x.r.Read(p[:min(int64(len(p)), x.left)])
	x.left -= int64(n)
	return n, unexpected(err)
}

// take reads n bytes to pass on and parse.
func (x *xzStream) take(n int) ([]byte, error) {
	at := len(x.ready)
	x.ready = append(x.ready, make([]byte, n)...)
	_, err := io.ReadFull(x.r, x.ready[at:])
	return x.ready[at:], unexpected(err)
}

func (x *xzStream) streamHeader() error {
	h, err := x.take(12)
	if err != nil {
		return err
	}
	if string(h[:6]) != xzMagic {
		return errors.New("xz: no stream")
	}
	sums := map[byte]int64{0: 0, 1: 4, 4: 8, 10: 32} // none, CRC32, CRC64, SHA-256
	var ok bool
	if x.sum, ok = sums[h[7]]; !ok {
		return fmt.Errorf("xz: check of type %d", h[7])
	}
	x.next = x.blockHeader
	return nil
}

// blockHeader reads a block's header, or the index in its place.
func (x *xzStream) blockHeader() error {
	size, err := x.take(1)
	if err != nil {
		return err
	}
	if size[0] == 0 {
		return x.index()
	}
	h, err := x.take(4*int(size[0]) + 3) // the size includes itself and the CRC32
	if err != nil {
		return err
	}
	flags, rest := h[0], h[1:]
	if flags&^0xc0 != 0 {
		return errors.New("xz: a block with more than one filter")
	}
	for bit := byte(0x40); bit != 0; bit <<= 1 { // sizes, packed and unpacked
		if flags&bit != 0 {
			_, n := binary.Uvarint(rest)
			if n <= 0 {
				return errors.New("xz: a size that is not a number")
			}
			rest = rest[n:]
		}
	}
	if len(rest) < 3 || rest[0] != xzFilterLZMA2 || rest[1] != 1 {
		return errors.New("xz: a filter other than LZMA2")
	}
	// Bits of the dictionary's size: 2 | odd, shifted.
	if d := rest[2]; d > 40 || uint64(2|d&1)<<(d/2+11) > xzMaxDictBytes {
		return errors.New("xz: the dictionary is too large")
	}
	x.block, x.next = 0, x.chunk
	return nil
}

func (x *xzStream) chunk() error {
	control, err := x.take(1)
	if err != nil {
		return err
	}
	x.block++
	c := control[0]
	switch {
	case c == 0:
		x.left = -x.block&3 + x.sum
		x.next = x.blockHeader
		return nil
	case c <= 2: // not compressed
		h, err := x.take(2)
		if err != nil {
			return err
		}
		x.left = int64(binary.BigEndian.Uint16(h)) + 1
		x.block += 2 + x.left
		return nil
	case c < 0x80:
		return errors.New("xz: a chunk of unknown type")
	}
	h, err := x.take(4)
	if err != nil {
		return err
	}
	x.left = int64(binary.BigEndian.Uint16(h[2:])) + 1
	if c >= 0xc0 { // new properties follow
		x.left++
	}
	x.block += 4 + x.left
	return nil
}

// index passes the index and the stream's footer; the unpacker compares them with the stream.
func (x *xzStream) index() error {
	size := int64(1) // includes the indicator, which was read already
	number := func() (uint64, error) {
		var n uint64
		for shift := 0; shift < 63; shift += 7 {
			b, err := x.take(1)
			if err != nil {
				return 0, err
			}
			size++
			n |= uint64(b[0]&0x7f) << shift
			if b[0] < 0x80 {
				return n, nil
			}
		}
		return 0, errors.New("xz: a number without an end")
	}
	records, err := number()
	if err != nil {
		return err
	}
	if records > xzMaxRecords {
		return errors.New("xz: too many blocks")
	}
	for range 2 * records {
		if _, err := number(); err != nil {
			return err
		}
	}
	x.left = -size&3 + 4 + 12
	x.next = func() error { return io.EOF }
	return nil
}

// newXZ unpacks a stream that ends where r ends.
func newXZ(r io.Reader) (io.Reader, error) {
	return xz.ReaderConfig{SingleStream: true}.NewReader(r)
}
