package bootimage_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/must"
)

const (
	largeBaseBytes  = 80 << 20
	largeImageBytes = 220 << 20
	largeBlockBytes = 128 << 10
	maxHeapMiB      = 128
)

// BenchmarkReadInitrd reads an initramfs of 300 MiB with an extension of one large file.
func BenchmarkReadInitrd(b *testing.B) {
	path := largeInitrd(b)
	b.SetBytes(largeBaseBytes + largeImageBytes)
	var peak float64
	for b.Loop() {
		peak = max(peak, readLarge(b, path))
	}
	b.ReportMetric(peak, "peak-heap-MiB")
}

// TestReadInitrdMemory: the content is not kept in memory.
func TestReadInitrdMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("long: makes and reads 300 MiB")
	}
	if peak := readLarge(t, largeInitrd(t)); peak > maxHeapMiB {
		t.Errorf("the heap had %.0f MiB", peak)
	}
}

// readLarge reads the initramfs from the file and returns the peak heap size, in MiB.
func readLarge(t testing.TB, path string) float64 {
	t.Helper()
	f := must.Get(os.Open(path))(t)
	defer f.Close()
	var got bootimage.Initrd
	peak := heap.Peak(t.Context(), func() { got = must.Get(bootimage.ReadInitrd(f, t.TempDir()))(t) })
	if large := got.Extensions[0].Files["/large"]; large.SizeBytes != largeImageBytes {
		t.Fatalf("files = %v", got.Extensions[0].Files)
	}
	return float64(peak) / (1 << 20)
}

// largeInitrd writes an incompressible initramfs without keeping it in memory.
func largeInitrd(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "initramfs.xz")
	f := must.Get(os.Create(path))(t)
	noise := rand.NewChaCha8([32]byte{})
	image := largeSquashfs()
	size := len(image.head) + largeImageBytes + len(image.tail)
	err := errors.Join(
		frame(f, func(w io.Writer) error {
			return writeCPIO(w, "rootfs", largeBaseBytes, io.LimitReader(noise, largeBaseBytes))
		}),
		frame(f, func(w io.Writer) error {
			if err := writeCPIO(w, "0.sqsh", size, io.MultiReader(bytes.NewReader(image.head), io.LimitReader(noise, largeImageBytes), bytes.NewReader(image.tail))); err != nil {
				return err
			}
			_, err := w.Write(cpio(entry{name: "extensions.yaml", content: oneLayer}))
			return err
		}),
		f.Close(),
	)
	must.Do(t, err)
	return path
}

// frame writes one zstd frame.
func frame(w io.Writer, write func(io.Writer) error) error {
	buffered := bufio.NewWriter(w)
	z, err := zstd.NewWriter(buffered, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	return errors.Join(write(z), z.Close(), buffered.Flush())
}

// writeCPIO writes an archive with one large file; another may follow.
func writeCPIO(w io.Writer, name string, size int, content io.Reader) error {
	head := fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		1, 0o100644, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	if _, err := w.Write(append(head, make([]byte, -len(head)&3)...)); err != nil {
		return err
	}
	if _, err := io.Copy(w, content); err != nil {
		return err
	}
	_, err := w.Write(append(make([]byte, -size&3), cpio()...))
	return err
}

// squashfsParts is a squashfs around the content of its only file, /large.
type squashfsParts struct{ head, tail []byte }

func largeSquashfs() squashfsParts {
	le := binary.LittleEndian
	const raw, rawData = 1 << 15, 1 << 24
	meta := func(b []byte) []byte {
		var out []byte
		for len(b) > 0 {
			n := min(len(b), 8192)
			out = append(le.AppendUint16(out, uint16(n)|raw), b[:n]...)
			b = b[n:]
		}
		return out
	}
	// The directory's inode comes first, so that its position is known: 32 bytes, then the file's.
	inodes := le.AppendUint16(nil, 1)
	inodes = le.AppendUint16(inodes, 0o755)
	inodes = append(inodes, make([]byte, 8)...)
	for _, v := range []uint32{2, 0, 2, 3 + 12 + 8 + 5, 3} { // number, start, links, size with offset 0, parent
		inodes = le.AppendUint32(inodes, v)
	}
	inodes = le.AppendUint16(inodes, 2)
	inodes = le.AppendUint16(inodes, 0o644)
	inodes = append(inodes, make([]byte, 8)...)
	for _, v := range []uint32{1, 96, 0xffffffff, 0, largeImageBytes} {
		inodes = le.AppendUint32(inodes, v)
	}
	for range largeImageBytes / largeBlockBytes {
		inodes = le.AppendUint32(inodes, largeBlockBytes|rawData)
	}
	var listing []byte
	for _, v := range []uint32{0, 0, 1} {
		listing = le.AppendUint32(listing, v)
	}
	for _, v := range []uint16{32, 0, 2, 4} {
		listing = le.AppendUint16(listing, v)
	}
	listing = append(listing, "large"...)
	inodeTable := 96 + largeImageBytes
	tail := meta(inodes)
	dirTable := inodeTable + len(tail)
	tail = append(tail, meta(listing)...)
	head := make([]byte, 0, 96)
	for _, v := range []uint32{0x73717368, 2, 0, largeBlockBytes, 0} {
		head = le.AppendUint32(head, v)
	}
	for _, v := range []uint16{6, 17, 0x1b, 1, 4, 0} {
		head = le.AppendUint16(head, v)
	}
	none := ^uint64(0)
	for _, v := range []uint64{0, uint64(96 + largeImageBytes + len(tail)), none, none, uint64(inodeTable), uint64(dirTable), none, none} {
		head = le.AppendUint64(head, v)
	}
	return squashfsParts{head: head, tail: tail}
}
