package bootimage

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// An initramfs is a sequence of members with zero bytes between them. Each is a cpio
// archive, or one or several compressed ones. The rules are those of
// unpack_to_rootfs in Linux' init/initramfs.c; there, a compressed member is a
// single stream and has to hold whole archives.

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
		member = &zstdFrame{r: br}
	case "xz":
		member = &xzStream{r: br}
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

// recorder keeps the bytes that gzipMember unpacks. Because it reads single bytes, the
// unpacker never takes one beyond the member.
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

// rawSum is the SHA-256 of a member as stored in the initramfs, including what use does not read.
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
