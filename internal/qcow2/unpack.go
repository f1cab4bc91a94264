package qcow2

import (
	"bytes"
	"compress/flate"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"
)

// unpacker keeps the decompressors, which are expensive to make.
type unpacker struct {
	flate io.ReadCloser
	zstd  *zstd.Decoder
}

// unpackCluster reads a compressed cluster into d.cluster. What qcow2 calls zlib has no
// header of zlib.
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
