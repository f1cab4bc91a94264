package verify

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/recast-sh/recast/internal/bootimage"
)

// programSum identifies a UEFI program, such as a kernel or a boot loader. For
// Secure Boot each build signs it again, with the time of signing (Sign in
// internal/pkg/secureboot/pesign of siderolabs/talos), so the sum then covers only
// the signed content.
func programSum(program *io.SectionReader, secureBoot bool) (string, error) {
	skip := []span(nil)
	if secureBoot {
		var err error
		if skip, err = unsigned(program); err != nil {
			return "", fmt.Errorf("%w: %w", bootimage.ErrFormat, err)
		}
	}
	sum := sha256.New()
	if err := hashWithout(sum, program, skip); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// span is a range of bytes.
type span struct{ from, to int64 }

// unsigned lists, in order, the parts of a PE file that a signature does not cover:
// checksum, the entry of the certificate table, and the table itself. See the
// Windows Authenticode Portable Executable Signature Format.
func unsigned(pe *io.SectionReader) ([]span, error) {
	const peHeader, optionalHeader, checksum = 0x3c, 24, 64
	at, err := littleEndian(pe, peHeader, 4)
	if err != nil {
		return nil, err
	}
	optional := at + optionalHeader
	magic, err := littleEndian(pe, optional, 2)
	if err != nil {
		return nil, err
	}
	directories := map[int64]int64{0x10b: 96, 0x20b: 112}[magic] // PE32, PE32+
	if directories == 0 {
		return nil, fmt.Errorf("no PE file: its optional header begins with %#x", magic)
	}
	const certificates, entry = 4, 8
	table := optional + directories + certificates*entry
	from, err := littleEndian(pe, table, 4)
	if err != nil {
		return nil, err
	}
	size, err := littleEndian(pe, table+4, 4)
	if err != nil {
		return nil, err
	}
	spans := []span{{optional + checksum, optional + checksum + 4}, {table, table + entry}}
	if size > 0 {
		spans = append(spans, span{from, min(from+size, pe.Size())})
	}
	return spans, nil
}

func littleEndian(r io.ReaderAt, at int64, bytes int) (int64, error) {
	var b [4]byte
	if _, err := r.ReadAt(b[:bytes], at); err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint32(b[:])), nil
}

// hashWithout hashes everything except some parts, which are in order.
func hashWithout(sum io.Writer, r *io.SectionReader, skip []span) error {
	at := int64(0)
	for _, s := range append(skip[:len(skip):len(skip)], span{r.Size(), r.Size()}) {
		if s.from < at || s.to > r.Size() {
			return fmt.Errorf("%w: parts of its header overlap", bootimage.ErrFormat)
		}
		if _, err := io.Copy(sum, io.NewSectionReader(r, at, s.from-at)); err != nil {
			return err
		}
		at = s.to
	}
	return nil
}

// rawSum is the SHA-256 of a section.
func rawSum(r *io.SectionReader) (string, error) {
	sum := sha256.New()
	if err := hashWithout(sum, r, nil); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
