// Package bootimage reads what Talos' boot media hold, from their bytes alone:
// unified kernel images, ISOs, initramfs archives and system extensions. It needs no
// root, no mount and no foreign program, and its memory does not grow with an image.
//
// Everything that it reads may come from a stranger. What is damaged, foreign or
// not understood is refused with ErrFormat; nothing is skipped over. Extended
// attributes are not compared, but those that give rights are refused.
package bootimage

import (
	"errors"
	"fmt"
	"io"
)

// ErrFormat says that bytes are damaged, or not in the format that they should have.
var ErrFormat = errors.New("damaged or of a foreign format")

// refuse is an error of a part: ErrFormat, but for an error that is not the bytes' own.
func refuse(part string, err error) error {
	if o, ok := errors.AsType[outsideError](err); ok {
		return fmt.Errorf("%s: %w", part, o.err)
	}
	return fmt.Errorf("%s: %w: %w", part, ErrFormat, err)
}

// outsideError is one that the bytes are not to blame for: they could not be
// fetched, a temporary file could not be written, or who was handed them stopped.
type outsideError struct{ err error }

func (e outsideError) Error() string { return e.err.Error() }
func (e outsideError) Unwrap() error { return e.err }

func outside(err error) error {
	if err == nil {
		return nil
	}
	return outsideError{err}
}

// source remembers why reading ended, whatever those who read through it make of that.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = outside(err)
	}
	return n, err
}

// or is the error of reading, and err if there was none.
func (s *source) or(err error) error {
	if err != nil && s.err != nil {
		return s.err
	}
	return err
}

// sourceAt is the same for random access.
type sourceAt struct {
	r   io.ReaderAt
	err error
}

func (s *sourceAt) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.r.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = outside(err)
	}
	return n, err
}

func (s *sourceAt) or(err error) error {
	if err != nil && s.err != nil {
		return s.err
	}
	return err
}

// bytesAt reads exactly n bytes.
func bytesAt(r io.ReaderAt, off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	if got, err := r.ReadAt(b, off); got < n {
		return nil, unexpected(err)
	}
	return b, nil
}
