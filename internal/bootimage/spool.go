package bootimage

import (
	"bytes"
	"errors"
	"io"
	"os"
)

// spooledInMemory is the size up to which a squashfs needs no temporary file.
const spooledInMemory = 1 << 20

// spool holds input that has to be read in another order than it arrives.
type spool struct {
	io.ReaderAt
	file *os.File // nil if it is in memory
}

// newSpool reads all of r, which has sizeBytes; the caller closes it.
func newSpool(r io.Reader, sizeBytes int64, dir string) (spool, error) {
	if sizeBytes <= spooledInMemory {
		b := make([]byte, sizeBytes)
		_, err := io.ReadFull(r, b)
		return spool{ReaderAt: bytes.NewReader(b)}, unexpected(err)
	}
	f, err := os.CreateTemp(dir, "squashfs-*")
	if err != nil {
		return spool{}, outside(err)
	}
	s := spool{ReaderAt: f, file: f}
	n, err := io.Copy(writer{f}, r)
	if err == nil && n != sizeBytes {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return spool{}, errors.Join(err, s.close())
	}
	return s, nil
}

func (s spool) close() error {
	if s.file == nil {
		return nil
	}
	return outside(errors.Join(s.file.Close(), os.Remove(s.file.Name())))
}

// writer distinguishes an error of the temporary file, such as a full disk, from one of the source.
type writer struct{ f *os.File }

func (w writer) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	return n, outside(err)
}
