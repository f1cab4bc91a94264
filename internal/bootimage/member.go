package bootimage

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// An initramfs is a sequence of members with zero bytes between them. A member is one cpio archive, or one or several
// compressed archives. The rules are those of unpack_to_rootfs in Linux' init/initramfs.c; there, a compressed member
// is a single stream and has to hold whole archives.

const (
	maxWindowBytes   = 32 << 20 // of zstd; imager's level 18 asks for 8 MiB
	maxUnpackedBytes = int64(16) << 30
	maxGzipAhead     = 1 << 20 // bytes for the next 32 KiB of content
	peekBytes        = 6
)

// eachMember calls raw with every uncompressed archive and packed with every compressed one.
func eachMember(r io.Reader, raw func(*bufio.Reader) error, packed func(kind string, member io.Reader) error) error {
	var n countingWriter
	br := bufio.NewReaderSize(io.TeeReader(r, &n), 64<<10)
	for {
		head, err := br.Peek(peekBytes)
		if len(head) == 0 {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		offset := int64(n) - int64(br.Buffered())
		switch kind := compression(head); {
		case head[0] == 0:
			_, err = br.Discard(1)
		case head[0] == '0' && offset%4 == 0:
			err = raw(br)
		case kind != "":
			err = consumeMember(br, kind, packed)
		default:
			err = errors.New("neither a cpio archive nor a known compression")
		}
		if err != nil {
			return fmt.Errorf("member at byte %d: %w", offset, err)
		}
	}
}

func compression(head []byte) string {
	for kind, magic := range map[string]string{"zstd": zstdMagic, "gzip": "\x1f\x8b", "xz": xzMagic} {
		if len(head) >= len(magic) && string(head[:len(magic)]) == magic {
			return kind
		}
	}
	return ""
}

// consumeMember passes on a compressed member and ensures that exactly the member was consumed.
func consumeMember(br *bufio.Reader, kind string, packed func(string, io.Reader) error) error {
	var member io.Reader
	switch kind {
	case "zstd":
		member = newZstdFrame(br)
	case "xz":
		member = newXZStream(br)
	default:
		member = &gzipMember{from: recorder{r: br}}
	}
	if err := packed(kind, member); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, member)
	return err
}

// gzipMember passes the bytes of one gzip member, whose end is known only by unpacking it.
type gzipMember struct {
	from recorder
	z    *gzip.Reader
	err  error
}

func (g *gzipMember) Read(p []byte) (int, error) {
	for len(g.from.taken) == 0 {
		if g.err != nil {
			return 0, g.err
		}
		g.err = g.advance()
	}
	n := copy(p, g.from.taken)
	g.from.taken = g.from.taken[n:]
	return n, nil
}

func (g *gzipMember) advance() (err error) {
	if g.z == nil {
		if g.z, err = gzip.NewReader(&g.from); err != nil {
			return unexpected(err)
		}
		g.z.Multistream(false)
	}
	_, err = io.CopyN(io.Discard, g.z, 32<<10)
	if err == nil && len(g.from.taken) > maxGzipAhead {
		err = errors.New("gzip: it is much larger than its content")
	}
	return err
}

// recorder keeps the bytes that gzipMember unpacks. The unpacker never takes a byte beyond the member, because
// recorder also reads single bytes.
type recorder struct {
	r     *bufio.Reader
	taken []byte
}

func (r *recorder) ReadByte() (byte, error) {
	b, err := r.r.ReadByte()
	if err == nil {
		r.taken = append(r.taken, b)
	}
	return b, err
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.taken = append(r.taken, p[:n]...)
	return n, err
}

// unpack calls use with the uncompressed content of a member.
func (b *budget) unpack(kind string, member io.Reader, use func(*bufio.Reader) error) error {
	content, end, err := unpacker(kind, member)
	if err != nil {
		return err
	}
	defer end()
	limited := &io.LimitedReader{R: content, N: b.unpacked}
	if err := use(bufio.NewReaderSize(limited, 64<<10)); err != nil {
		return err
	}
	if b.unpacked = limited.N; b.unpacked == 0 {
		return errTooLarge
	}
	return nil
}

func unpacker(kind string, member io.Reader) (content io.Reader, end func(), err error) {
	switch kind {
	case "zstd":
		d, err := zstd.NewReader(member, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindowBytes))
		if err != nil {
			return nil, nil, err
		}
		return d, d.Close, nil
	case "xz":
		content, err = newXZ(member)
	default:
		content, err = gzip.NewReader(member)
	}
	return content, func() {}, err
}

// eachArchive reads the archives of an unpacked member.
func eachArchive(r *bufio.Reader, read func(*bufio.Reader) error) error {
	for {
		b, err := r.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if b == 0 {
			continue
		}
		if err := r.UnreadByte(); err != nil {
			return err
		}
		if err := read(r); err != nil {
			return err
		}
	}
}

// rawSum returns the SHA-256 of a member as stored in the initramfs, including the bytes that use does not read.
func rawSum(member io.Reader, use func(io.Reader) error) (string, error) {
	sum := sha256.New()
	tee := io.TeeReader(member, sum)
	if err := use(tee); err != nil {
		return "", err
	}
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// stream passes the bytes of exactly one compressed stream and then ends, so that what follows stays
// in the underlying reader. It parses headers, without unpacking the content.
type stream struct {
	r     *bufio.Reader
	ready []byte       // headers that were read and not yet passed on
	left  int64        // bytes to pass on without parsing
	next  func() error // parses the next header; io.EOF at the end of the stream
	err   error
}

func (s *stream) Read(p []byte) (int, error) {
	for len(s.ready) == 0 && s.left == 0 {
		if s.err == nil {
			s.err = s.next()
		}
		if s.err != nil {
			return 0, s.err
		}
	}
	if len(s.ready) > 0 {
		n := copy(p, s.ready)
		s.ready = s.ready[n:]
		return n, nil
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	return n, unexpected(err)
}

// take reads n bytes to pass on and parse.
func (s *stream) take(n int) ([]byte, error) {
	at := len(s.ready)
	s.ready = append(s.ready, make([]byte, n)...)
	_, err := io.ReadFull(s.r, s.ready[at:])
	return s.ready[at:], unexpected(err)
}

func (s *stream) end() error { return io.EOF }

// xzStream is one .xz stream (the .xz file format, 1.1.0). It walks the LZMA2 chunks, and refuses what
// the kernel cannot unpack and dictionaries that are too large.
type xzStream struct {
	stream
	block int64 // bytes of the block's chunks
	sum   int64 // bytes of a block's check
}

func newXZStream(r *bufio.Reader) *xzStream {
	x := &xzStream{stream: stream{r: r}}
	x.next = x.streamHeader
	return x
}

const (
	xzMagic        = "\xfd7zXZ\x00"
	xzMaxDictBytes = 32 << 20
	xzMaxRecords   = 1 << 16
	xzFilterLZMA2  = 0x21
)

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

// index passes on the index and the stream's footer; the unpacker compares them with the stream.
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
	x.next = x.end
	return nil
}

// newXZ unpacks a stream that ends where r ends.
func newXZ(r io.Reader) (io.Reader, error) { return xz.ReaderConfig{SingleStream: true}.NewReader(r) }

// zstdFrame is one Zstandard frame (RFC 8878, 3.1.1).
type zstdFrame struct {
	stream
	sum bool // a checksum follows the last block
}

func newZstdFrame(r *bufio.Reader) *zstdFrame {
	f := &zstdFrame{stream: stream{r: r}}
	f.next = f.frameHeader
	return f
}

const (
	zstdMagic         = "\x28\xb5\x2f\xfd"
	zstdMaxBlockBytes = 128 << 10
)

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
	f.next = f.blockHeader
	_, err = f.take(rest)
	return err
}

func (f *zstdFrame) blockHeader() error {
	h, err := f.take(3)
	if err != nil {
		return err
	}
	v := uint32(h[0]) | uint32(h[1])<<8 | uint32(h[2])<<16
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
	if v&1 == 0 {
		return nil
	}
	f.next = f.end
	if f.sum {
		f.left += 4
	}
	return nil
}
