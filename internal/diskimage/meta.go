package diskimage

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Value is a value of the META partition, which Talos reads before any configuration.
type Value struct {
	Key   uint8 // 0xc, … : pkg/machinery/meta of siderolabs/talos
	Value string
}

// The form of META is that of adv/talos in siderolabs/go-adv: two equal copies.
const (
	metaBytes  = 256 << 10
	metaMagic1 = 0x5a4b3c2d
	metaMagic2 = 0xa5b4c3d2
	metaSum    = metaBytes - 36
)

// readMeta reads a META partition, which is blank if it has no values. Talos also takes
// values in the older form of syslinux, from the end of the partition, which imager
// never writes: whatever follows the copies is refused.
func readMeta(r *io.SectionReader) ([]Value, error) {
	if r.Size() < 2*metaBytes {
		return nil, fmt.Errorf("a partition of %d bytes", r.Size())
	}
	first, err := bytesAt(r, 0, metaBytes)
	if err != nil {
		return nil, err
	}
	second, err := bytesAt(r, metaBytes, metaBytes)
	if err != nil {
		return nil, err
	}
	if err := blank(io.NewSectionReader(r, 2*metaBytes, r.Size()-2*metaBytes)); err != nil {
		return nil, err
	}
	if !bytes.Equal(first, second) {
		return nil, errors.New("its two copies differ")
	}
	if !slices.ContainsFunc(first, func(b byte) bool { return b != 0 }) {
		return nil, nil
	}
	return metaValues(first)
}

func metaValues(b []byte) ([]Value, error) {
	be := binary.BigEndian
	if be.Uint32(b) != metaMagic1 || be.Uint32(b[metaBytes-4:]) != metaMagic2 {
		return nil, errors.New("it is not in Talos' form")
	}
	sum := slices.Clone(b[metaSum : metaSum+sha256.Size])
	clear(b[metaSum : metaSum+sha256.Size])
	if got := sha256.Sum256(b); !bytes.Equal(got[:], sum) {
		return nil, errors.New("it has another checksum than it says")
	}
	var values []Value
	for data := b[4:metaSum]; len(data) >= 8 && be.Uint32(data) != 0; {
		key, size := be.Uint32(data), int64(be.Uint32(data[4:]))
		switch {
		case key > 0xff:
			return nil, fmt.Errorf("a key of %#x", key)
		case size > int64(len(data)-8):
			return nil, fmt.Errorf("the value of %#x leads beyond the end", key)
		case slices.ContainsFunc(values, func(v Value) bool { return v.Key == uint8(key) }):
			return nil, fmt.Errorf("%#x has two values", key)
		}
		values = append(values, Value{Key: uint8(key), Value: string(data[8 : 8+size])})
		data = data[8+size:]
	}
	slices.SortFunc(values, func(a, b Value) int { return cmp.Compare(a.Key, b.Key) })
	return values, nil
}

// blank requires zeros.
func blank(r io.Reader) error {
	b := make([]byte, 32<<10)
	for {
		n, err := r.Read(b)
		if slices.ContainsFunc(b[:n], func(b byte) bool { return b != 0 }) {
			return errors.New("there is something after its values")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
