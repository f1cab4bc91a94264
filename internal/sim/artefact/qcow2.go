package artefact

import (
	"bytes"
	"compress/flate"
	"encoding/binary"

	"github.com/klauspost/compress/zstd"
)

// Compression is how the clusters of a qcow2 file are compressed.
type Compression int

// The kinds of compression: Plain is what imager makes, by "qemu-img convert".
const (
	Plain Compression = iota
	Zlib
	Zstd
)

const (
	qcow2Bits    = 13 // clusters of 8 KiB, as the Image Factory orders them
	qcow2Cluster = 1 << qcow2Bits
	qcow2Copied  = 1 << 63
	qcow2Packed  = 1 << 62
	qcow2Header  = 112
)

// QCOW2 makes a qcow2 file of a disk's bytes: of version 3, without the clusters that
// are zero. See docs/interop/qcow2.rst of QEMU.
func QCOW2(disk []byte, by Compression) ([]byte, error) {
	disk = padded(bytes.Clone(disk), 512)
	perTable := qcow2Cluster / 8
	clusters := roundUp(len(disk), qcow2Cluster) / qcow2Cluster
	tables := roundUp(clusters, perTable) / perTable
	w := &qcow2Writer{first: make([]uint64, roundUp(tables, perTable)), pack: by}
	w.file = make([]byte, qcow2Cluster) // the header
	firstAt := w.append(make([]byte, len(w.first)*8))
	for n := range tables {
		table := make([]uint64, perTable)
		for i := range table {
			from := (n*perTable + i) * qcow2Cluster
			if from >= len(disk) {
				break
			}
			entry, err := w.cluster(disk[from:min(from+qcow2Cluster, len(disk))])
			if err != nil {
				return nil, err
			}
			table[i] = entry
		}
		if w.first[n] = 0; !allZero(table) {
			w.align()
			w.first[n] = uint64(w.append(bigEndian(table))) | qcow2Copied
		}
	}
	w.align()
	copy(w.file[firstAt:], bigEndian(w.first))
	countsAt := w.counts()
	w.header(len(disk), tables, firstAt, countsAt)
	return w.file, nil
}

type qcow2Writer struct {
	file  []byte
	first []uint64
	pack  Compression
	refs  map[int]uint16 // of clusters that several compressed ones share
}

func (w *qcow2Writer) align() { w.file = padded(w.file, qcow2Cluster) }

func (w *qcow2Writer) append(b []byte) (at int) {
	at = len(w.file)
	w.file = append(w.file, b...)
	return at
}

// cluster writes one, and returns its entry in a table.
func (w *qcow2Writer) cluster(b []byte) (uint64, error) {
	if len(bytes.Trim(b, "\x00")) == 0 {
		return 0, nil
	}
	b = padded(bytes.Clone(b), qcow2Cluster)
	if w.pack == Plain {
		w.align()
		return uint64(w.append(b)) | qcow2Copied, nil
	}
	small, err := w.packed(b)
	if err != nil {
		return 0, err
	}
	if len(small) >= qcow2Cluster { // QEMU stores it as it is, too
		w.align()
		return uint64(w.append(b)) | qcow2Copied, nil
	}
	at := w.append(small)
	last := at + len(small) - 1
	if w.refs == nil {
		w.refs = map[int]uint16{}
	}
	for c := at / qcow2Cluster; c <= last/qcow2Cluster; c++ {
		w.refs[c]++
	}
	const bits = 62 - (qcow2Bits - 8)
	return qcow2Packed | uint64(last/512-at/512)<<bits | uint64(at), nil
}

func (w *qcow2Writer) packed(b []byte) ([]byte, error) {
	if w.pack == Zstd {
		z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return z.EncodeAll(b, nil), z.Close()
	}
	var out bytes.Buffer
	z, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(b); err != nil {
		return nil, err
	}
	err = z.Close()
	return out.Bytes(), err
}

// counts writes the reference counts of all clusters, their own included.
func (w *qcow2Writer) counts() (at int) {
	const perBlock = qcow2Cluster / 2 // counts of 16 bits
	used := len(w.file) / qcow2Cluster
	blocks := 1
	for roundUp(used+1+blocks, perBlock)/perBlock > blocks {
		blocks++
	}
	at = w.append(make([]byte, qcow2Cluster))
	first := w.append(make([]byte, blocks*qcow2Cluster))
	for n := range len(w.file) / qcow2Cluster {
		count := uint16(1)
		if shared := w.refs[n]; shared > 0 {
			count = shared
		}
		binary.BigEndian.PutUint16(w.file[first+2*n:], count)
	}
	for n := range blocks {
		binary.BigEndian.PutUint64(w.file[at+8*n:], uint64(first+n*qcow2Cluster))
	}
	return at
}

func (w *qcow2Writer) header(diskBytes, tables, firstAt, countsAt int) {
	h, be := w.file, binary.BigEndian
	copy(h, "QFI\xfb")
	be.PutUint32(h[4:], 3)
	be.PutUint32(h[20:], qcow2Bits)
	be.PutUint64(h[24:], uint64(diskBytes))
	be.PutUint32(h[36:], uint32(tables))
	be.PutUint64(h[40:], uint64(firstAt))
	be.PutUint64(h[48:], uint64(countsAt))
	be.PutUint32(h[56:], 1)
	be.PutUint32(h[96:], 4) // counts of 2^4 bits
	be.PutUint32(h[100:], qcow2Header)
	if w.pack == Zstd {
		be.PutUint64(h[72:], 1<<3)
		h[104] = 1
	}
}

func bigEndian(table []uint64) []byte {
	b := make([]byte, 0, 8*len(table))
	for _, entry := range table {
		b = binary.BigEndian.AppendUint64(b, entry)
	}
	return b
}

func allZero(table []uint64) bool {
	for _, entry := range table {
		if entry != 0 {
			return false
		}
	}
	return true
}
