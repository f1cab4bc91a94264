// Package qcow2 reads the disk in a qcow2 file of version 2 or 3, with constant memory. The clusters may be
// compressed by zlib or zstd. A file is refused if a part of the disk is in another file, or encrypted.
package qcow2

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// ErrFormat says that bytes are damaged, or not in the expected format. ErrBackingFile
// and ErrDataFile are two of its reasons.
var (
	ErrFormat      = errors.New("damaged or of a foreign format")
	ErrBackingFile = errors.New("it has a backing file: a part of the disk is in another file")
	ErrDataFile    = errors.New("its data is in another file")
)

// The header and the tables of docs/interop/qcow2.rst of QEMU. lima-vm/go-qcow2reader
// v0.7.0 opens a file that is cut in the middle, follows a backing file wherever it
// leads, and cannot read what "qemu-img convert -c -o cluster_size=8k" makes.
const (
	magic        = 0x514649fb // "QFI" 0xfb
	headerV2     = 72
	headerV3     = 104
	headerZstd   = 112 // a header of at least this length has a compression type
	minBits      = 9
	maxBits      = 21 // as in QEMU
	offsetMask   = 0x00fffffffffffe00
	compressed   = 1 << 62
	zeroCluster  = 1 // since version 3
	sector       = 512
	maxDiskBytes = 1 << 40
	maxTables    = 8 << 20 // bytes of the first table: enough for 1 TiB in clusters of 8 KiB
)

// Incompatible features.
const (
	featureDirty       = 1 << 0
	featureCorrupt     = 1 << 1
	featureData        = 1 << 2
	featureCompression = 1 << 3
	featureExtended    = 1 << 4
)

// Disk is the disk in a qcow2 file.
type Disk struct {
	r            io.ReaderAt
	fileBytes    int64
	sizeBytes    int64 // of the disk
	clusterBytes int64
	bits         uint
	version      uint32
	zstd         bool
	tables       []uint64 // where each table of clusters lies; 0: nowhere

	mu      sync.Mutex // guards what follows
	table   []uint64   // the table that was read last
	tableAt uint64
	cluster []byte // the cluster that was unpacked last
	entry   uint64 // the entry of cluster
	unpack  unpacker
}

// Open reads the header and all tables of a file of fileBytes. Everything that they name has to be in the file. Open
// returns errors of r as they are; other errors are ErrFormat.
func Open(r io.ReaderAt, fileBytes int64) (*Disk, error) {
	src := &source{r: r}
	d, err := open(src, fileBytes)
	switch {
	case err == nil:
		return d, nil
	case src.err != nil:
		return nil, src.err
	}
	return nil, fmt.Errorf("%w: %w", ErrFormat, err)
}

// source records an error of reading, for which the bytes are not to blame.
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
	_, err := io.ReadFull(io.NewSectionReader(r, off, int64(n)), b)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

func open(r io.ReaderAt, fileBytes int64) (*Disk, error) {
	h, err := bytesAt(r, 0, headerV2)
	if err != nil {
		return nil, fmt.Errorf("qcow2 header: %w", err)
	}
	be := binary.BigEndian
	if be.Uint32(h) != magic {
		return nil, errors.New("no qcow2 file")
	}
	d := &Disk{r: r, fileBytes: fileBytes, version: be.Uint32(h[4:]), sizeBytes: int64(be.Uint64(h[24:])), bits: uint(be.Uint32(h[20:]))}
	switch {
	case d.version != 2 && d.version != 3:
		return nil, fmt.Errorf("qcow2 of version %d; 2 and 3 are known", d.version)
	case be.Uint64(h[8:]) != 0:
		return nil, ErrBackingFile
	case be.Uint32(h[32:]) != 0:
		return nil, errors.New("it is encrypted")
	case be.Uint32(h[60:]) != 0:
		return nil, errors.New("it has snapshots")
	case d.bits < minBits || d.bits > maxBits:
		return nil, fmt.Errorf("clusters of 2^%d bytes", d.bits)
	case d.sizeBytes <= 0 || d.sizeBytes > maxDiskBytes || d.sizeBytes%sector != 0:
		return nil, fmt.Errorf("a disk of %d bytes", d.sizeBytes)
	}
	d.clusterBytes = 1 << d.bits
	if err := d.features(); err != nil {
		return nil, err
	}
	if err := d.readTables(be.Uint32(h[36:]), be.Uint64(h[40:])); err != nil {
		return nil, err
	}
	return d, d.checkCounts(be.Uint64(h[48:]), be.Uint32(h[56:]))
}

// features refuses features that change how the tables are read, except for the compression.
func (d *Disk) features() error {
	if d.version == 2 {
		return nil
	}
	h, err := bytesAt(d.r, 0, headerV3)
	if err != nil {
		return fmt.Errorf("qcow2 header: %w", err)
	}
	be := binary.BigEndian
	features, length := be.Uint64(h[72:]), be.Uint32(h[100:])
	if length < headerV3 {
		return fmt.Errorf("a qcow2 header of %d bytes", length)
	}
	switch {
	case features&featureDirty != 0:
		return errors.New("it was not closed properly")
	case features&featureCorrupt != 0:
		return errors.New("it is marked as corrupt")
	case features&featureData != 0:
		return ErrDataFile
	case features&featureExtended != 0:
		return errors.New("it has subclusters, which no image of Talos has")
	}
	if unknown := features &^ featureCompression; unknown != 0 {
		return fmt.Errorf("it has features that are not known: %#x", unknown)
	}
	if features&featureCompression == 0 {
		return nil
	}
	if length < headerZstd {
		return fmt.Errorf("a qcow2 header of %d bytes", length)
	}
	kind, err := bytesAt(d.r, headerV3, 1)
	if err != nil {
		return fmt.Errorf("qcow2 header: %w", err)
	}
	if d.zstd = kind[0] == 1; kind[0] > 1 {
		return fmt.Errorf("compression of type %d; zlib and zstd are known", kind[0])
	}
	return nil
}

// Size returns the size of the disk.
func (d *Disk) Size() int64 { return d.sizeBytes }

// perTable returns how many clusters a table has.
func (d *Disk) perTable() int64 { return d.clusterBytes / 8 }

func (d *Disk) clusters() int64 { return (d.sizeBytes + d.clusterBytes - 1) / d.clusterBytes }

func (d *Disk) readTables(count uint32, at uint64) error {
	need := (d.clusters() + d.perTable() - 1) / d.perTable()
	if int64(count) < need {
		return fmt.Errorf("its first table has %d entries, the disk needs %d", count, need)
	}
	if need*8 > maxTables {
		return fmt.Errorf("its clusters of %d bytes are too small for the disk", d.clusterBytes)
	}
	if err := d.within("the first table", at, need*8); err != nil {
		return err
	}
	b, err := bytesAt(d.r, int64(at), int(need*8))
	if err != nil {
		return fmt.Errorf("the first table: %w", err)
	}
	d.tables = make([]uint64, need)
	for i := range d.tables {
		d.tables[i] = binary.BigEndian.Uint64(b[8*i:]) & offsetMask
	}
	for n := int64(0); n < d.clusters(); n++ {
		if d.tables[n/d.perTable()] == 0 {
			n += d.perTable() - 1 // none of the table's clusters is there
			continue
		}
		entry, err := d.find(n)
		if err != nil {
			return err
		}
		if err := d.checkEntry(entry); err != nil {
			return err
		}
	}
	return nil
}

// checkEntry requires that a cluster lies in the file. A compressed cluster ends somewhere in its last sector; the
// file may end in that sector, too.
func (d *Disk) checkEntry(entry uint64) error {
	const what = "a cluster"
	if entry&compressed != 0 {
		at, size := d.packed(entry)
		return d.within(what, uint64(at), size-sector+1)
	}
	if at := entry & offsetMask; at != 0 && entry&zeroCluster == 0 {
		if at%uint64(d.clusterBytes) != 0 {
			return fmt.Errorf("%s lies at %d, which is within another", what, at)
		}
		return d.within(what, at, d.clusterBytes)
	}
	return nil
}

// checkCounts requires that the reference counts are in the file. Nothing here needs them, but QEMU does, and a
// truncated file may have lost them.
func (d *Disk) checkCounts(at uint64, clusters uint32) error {
	size := int64(clusters) << d.bits
	if size > maxTables {
		return fmt.Errorf("a table of reference counts of %d bytes", size)
	}
	if err := d.within("the table of reference counts", at, size); err != nil {
		return err
	}
	b, err := bytesAt(d.r, int64(at), int(size))
	if err != nil {
		return fmt.Errorf("the reference counts: %w", err)
	}
	for ; len(b) > 0; b = b[8:] {
		if block := binary.BigEndian.Uint64(b) & offsetMask; block != 0 {
			if err := d.within("a block of reference counts", block, d.clusterBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Disk) within(what string, at uint64, size int64) error {
	if at > uint64(d.fileBytes) || size > d.fileBytes-int64(at) {
		return fmt.Errorf("it is cut short: %s is at %d, but the file has only %d bytes", what, at, d.fileBytes)
	}
	return nil
}

// find returns the entry of a cluster. The caller holds d.mu, except while opening.
func (d *Disk) find(n int64) (uint64, error) {
	at := d.tables[n/d.perTable()]
	if at == 0 {
		return 0, nil
	}
	if at != d.tableAt {
		if err := d.within("a table of clusters", at, d.clusterBytes); err != nil {
			return 0, err
		}
		b, err := bytesAt(d.r, int64(at), int(d.clusterBytes))
		if err != nil {
			return 0, fmt.Errorf("a table of clusters: %w", err)
		}
		if d.table == nil {
			d.table = make([]uint64, d.perTable())
		}
		for i := range d.table {
			d.table[i] = binary.BigEndian.Uint64(b[8*i:])
		}
		d.tableAt = at
	}
	return d.table[n%d.perTable()], nil
}

// packed returns where a compressed cluster lies, and the size of the sectors that it touches, in bytes.
func (d *Disk) packed(entry uint64) (at, size int64) {
	bits := 62 - (d.bits - 8)
	at = int64(entry & (1<<bits - 1))
	more := int64(entry &^ compressed &^ (1 << 63) >> bits)
	return at, (more+1)*sector - at%sector
}

// ReadAt reads from the disk.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	done := 0
	for done < len(p) {
		at := off + int64(done)
		if at < 0 || at >= d.sizeBytes {
			return done, io.EOF
		}
		within := at % d.clusterBytes
		n := min(int64(len(p)-done), d.clusterBytes-within, d.sizeBytes-at)
		if err := d.readCluster(p[done:done+int(n)], at/d.clusterBytes, within); err != nil {
			return done, err
		}
		done += int(n)
	}
	return done, nil
}

// readCluster reads a part of a cluster.
func (d *Disk) readCluster(p []byte, n, within int64) error {
	entry, err := d.find(n)
	if err != nil {
		return err
	}
	at := int64(entry & offsetMask)
	switch {
	case entry&compressed != 0:
		if err := d.unpackCluster(entry); err != nil {
			return fmt.Errorf("%w: cluster %d of the disk: %w", ErrFormat, n, err)
		}
		copy(p, d.cluster[within:])
	case at == 0 || entry&zeroCluster != 0:
		clear(p)
	default:
		if got, err := d.r.ReadAt(p, at+within); got < len(p) {
			return fmt.Errorf("cluster %d of the disk: %w", n, err)
		}
	}
	return nil
}

// unpacker keeps the decompressors, which are expensive to make.
type unpacker struct {
	flate io.ReadCloser
	zstd  *zstd.Decoder
}

// unpackCluster reads a compressed cluster into d.cluster. The data that qcow2 calls zlib has no zlib header.
func (d *Disk) unpackCluster(entry uint64) error {
	if entry == d.entry && d.cluster != nil {
		return nil
	}
	d.entry = 0
	at, size := d.packed(entry)
	b := make([]byte, min(size, d.fileBytes-at))
	if got, err := d.r.ReadAt(b, at); got < len(b) {
		return err
	}
	if d.cluster == nil {
		d.cluster = make([]byte, d.clusterBytes)
	}
	r, err := d.unpack.reader(b, d.zstd)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(r, d.cluster); err != nil {
		return errors.Join(errors.New("it does not unpack to a cluster"), err)
	}
	d.entry = entry
	return nil
}

// reader unpacks b; what follows the packed bytes belongs to another cluster.
func (u *unpacker) reader(b []byte, isZstd bool) (io.Reader, error) {
	from := bytes.NewReader(b)
	if !isZstd {
		if u.flate == nil {
			u.flate = flate.NewReader(from)
			return u.flate, nil
		}
		return u.flate, u.flate.(flate.Resetter).Reset(from, nil)
	}
	if u.zstd == nil {
		var err error
		if u.zstd, err = zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(8<<20)); err != nil {
			return nil, err
		}
		return u.zstd, nil
	}
	return u.zstd, u.zstd.Reset(from)
}
