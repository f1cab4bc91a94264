package bootimage

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// zstdFrame passes the bytes of exactly one Zstandard frame (RFC 8878, 3.1.1) and
// then ends, so that what follows the frame stays in the underlying reader.
type zstdFrame struct {
	r       *bufio.Reader
	ready   []byte // a header that was read and not yet passed on
	left    int64  // bytes of the block to pass on
	started bool
	last    bool // block
	sum     bool // a checksum follows the last block
	err     error
}

const (
	zstdMagic         = "\x28\xb5\x2f\xfd"
	zstdMaxBlockBytes = 128 << 10
)

func (f *zstdFrame) Read(p []byte) (int, error) {
	for len(f.ready) == 0 && f.left == 0 {
		if f.err == nil {
			f.err = f.advance()
		}
		if f.err != nil {
			return 0, f.err
		}
	}
	if len(f.ready) > 0 {
		n := copy(p, f.ready)
		f.ready = f.ready[n:]
		return n, nil
	}
	n, err := f.r.Read(p[:min(int64(len(p)), f.left)])
	f.left -= int64(n)
	return n, unexpected(err)
}

// advance reads the next header.
func (f *zstdFrame) advance() error {
	switch {
	case !f.started:
		f.started = true
		return f.frameHeader()
	case f.last && f.sum:
		f.sum, f.left = false, 4
		return nil
	case f.last:
		return io.EOF
	}
	h, err := f.take(3)
	if err != nil {
		return err
	}
	v := binary.LittleEndian.Uint32(append(h, 0))
	f.last = v&1 != 0
	size := int64(v >> 3)
	if size > zstdMaxBlockBytes {
		return fmt.Errorf("zstd: a block of %d bytes", size)
	}
	switch v >> 1 & 3 {
	case 0, 2:
		f.left = size
	case 1: // one byte, repeated size times
		f.left = 1
	default:
		return errors.New("zstd: a block of the reserved type")
	}
	f.ready = h
	return nil
}

func (f *zstdFrame) frameHeader() error {
	h, err := f.take(5)
	if err != nil {
		return err
	}
	if string(h[:4]) != zstdMagic {
		return errors.New("zstd: no frame")
	}
	descriptor := h[4]
	single := descriptor&0x20 != 0
	f.sum = descriptor&4 != 0
	rest := []int{0, 1, 2, 4}[descriptor&3] + []int{0, 2, 4, 8}[descriptor>>6]
	if !single || descriptor>>6 == 0 {
		rest++ // the window's size, or a content size of one byte in its place
	}
	more, err := f.take(rest)
	f.ready = append(h, more...)
	return err
}

func (f *zstdFrame) take(n int) ([]byte, error) {
	b := make([]byte, n, n+16)
	_, err := io.ReadFull(f.r, b)
	return b, unexpected(err)
}
