package verify

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/recast-sh/recast/internal/bootimage"
)

// programSum identifies a UEFI program: a boot loader always, a kernel of an image for Secure Boot. Each build
// signs those again, with the time of signing (Sign in internal/pkg/secureboot/pesign of
// siderolabs/talos), and an Image Factory with keys for Secure Boot signs those of an ordinary installer, too, but not
// of its ISO (siderolabs/image-factory#538). So the sum covers only the signed content.
func programSum(program *io.SectionReader) (string, error) {
	skip, err := unsigned(program)
	if err != nil {
		return "", fmt.Errorf("%w: %w", bootimage.ErrFormat, err)
	}
	sum := sha256.New()
	if err := hashWithout(sum, program, skip); err != nil {
		return "", err
	}
	end := program.Size()
	if len(skip) > 2 {
		end = skip[2].from
	}
	// Signing pads a program with zeros to where the table may begin.
	if _, err := sum.Write(make([]byte, -end&(tableAlignment-1))); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// span is a range of bytes.
type span struct{ from, to int64 }

// tableAlignment is that of a certificate table, in bytes.
const tableAlignment = 8

// unsigned lists, in order, the parts of a PE file that a signature does not cover:
// checksum, the entry of the certificate table, and the table itself. See the
// Windows Authenticode Portable Executable Signature Format. The table has to be what ends the file, behind
// everything that is loaded: what it hides from a comparison is never run.
func unsigned(pe *io.SectionReader) ([]span, error) {
	const peHeader, optionalHeader, checksum, sizeOfHeaders = 0x3c, 24, 64, 60
	at, err := littleEndian(pe, peHeader, 4)
	if err != nil {
		return nil, err
	}
	if magic, err := littleEndian(pe, at, 4); err != nil || magic != 0x4550 || at < peHeader+4 {
		return nil, errors.Join(errors.New("no PE file: its header is not where it should be"), err)
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
	length, err := littleEndian(pe, at+20, 2)
	if err != nil {
		return nil, err
	}
	count, err := littleEndian(pe, optional+directories-4, 4)
	if err != nil {
		return nil, err
	}
	if count <= certificates || length < directories+(certificates+1)*entry {
		return nil, errors.New("its header has no entry for a certificate table")
	}
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
	if size == 0 && from == 0 {
		return spans, nil
	}
	headers, err := littleEndian(pe, optional+sizeOfHeaders, 4)
	if err != nil {
		return nil, err
	}
	loaded, err := loadedEnd(pe, at, optional+length, max(headers, optional+length))
	switch {
	case err != nil:
		return nil, err
	case from%tableAlignment != 0, from < loaded, size == 0, from+size > pe.Size(), pe.Size()-from-size >= tableAlignment:
		return nil, fmt.Errorf("its certificate table is from %d to %d of %d bytes, and not behind its sections at the end", from, from+size, pe.Size())
	}
	return append(spans, span{from, pe.Size()}), nil // what pads the table is of it
}

// loadedEnd is where the last section ends in the file.
func loadedEnd(pe io.ReaderAt, header, sections, end int64) (int64, error) {
	const entry, sizeOfRawData, pointerToRawData = 40, 16, 20
	n, err := littleEndian(pe, header+6, 2)
	if err != nil {
		return 0, err
	}
	end = max(end, sections+n*entry)
	for i := range n {
		size, errSize := littleEndian(pe, sections+i*entry+sizeOfRawData, 4)
		from, errFrom := littleEndian(pe, sections+i*entry+pointerToRawData, 4)
		if err := errors.Join(errSize, errFrom); err != nil {
			return 0, err
		}
		end = max(end, from+size)
	}
	return end, nil
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
